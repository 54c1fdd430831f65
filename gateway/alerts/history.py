"""The history of alerts in memory: each tenant's transitions, oldest first, and the newest one of each subject.

It is read from the disk once; after that only rows that another gateway wrote or removed are read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from backend_store.client import Document, Documents
from gateway.alerts.core.rules import Rule
from gateway.alerts.limits import HISTORY_MS_MAX, HISTORY_PER_TENANT_MAX
from gateway.alerts.stored import HISTORY, Transition, decode_transition, gone, load_transitions, put_transition, row_of


class History:
    """The stored transitions of all tenants; owned by `Record`."""

    def __init__(self, documents: Documents) -> None:
        self.seq = 0
        """Number of the newest line."""
        self.of_tenant: dict[str, deque[Transition]] = {}
        self._documents = documents
        self._lines: dict[str, Transition] = {}
        """By the name of their row."""
        self._newest: dict[tuple[str, str], int] = {}
        """Number of the newest line by rule and subject."""
        self._elsewhere = documents.changes_from_now_on(HISTORY)
        self.read_all()

    def read_all(self) -> list[Transition]:
        """Reloads the history from the disk and forgets what was not written. Returns all lines, the oldest first."""
        self._elsewhere.clear()
        self.of_tenant, self._lines, self._newest = {}, {}, {}
        for line in load_transitions(self._documents):
            self._add(line)
        return self.all()

    def all(self) -> list[Transition]:
        return list(self._lines.values())

    def read_changes(self) -> list[Transition]:
        """Takes over what was written or removed elsewhere. Returns the lines that are new here, the oldest first."""
        names = sorted(self._elsewhere)
        self._elsewhere.clear()
        found: list[Transition] = []
        for name in names:
            data = self._documents.get(HISTORY, name)
            if data is None:
                self._remove(name)
            elif name not in self._lines:
                found.append(decode_transition(data))
                self._add(found[-1])
        return found

    def last_about(self, rule: Rule, subject: str) -> int:
        """Returns the number of the last line about a subject; if none is left, that of the tenant's first line.

        The number grows each time the rule fires about the subject, and is the same at each gateway that has the same
        lines.
        """
        found = self._newest.get((rule.id, subject))
        if found is not None:
            return found
        lines = self.of_tenant.get(rule.tenant)
        return lines[0].seq if lines else 0

    def newest_first(self, tenant: str, since_ms: int) -> Iterator[Transition]:
        """In the order of their numbers: clocks of gateways differ, so times may be out of order."""
        return (line for line in reversed(self.of_tenant.get(tenant, ())) if line.at_ms >= since_ms)

    def note(self, line: Transition, now_ms: int) -> list[Document]:
        """Adds a line. Returns the rows to write: the line, and the removal of lines that make room for it."""
        self._add(line)
        lines = self.of_tenant[line.tenant]
        rows = [put_transition(line)]
        while len(lines) > HISTORY_PER_TENANT_MAX or lines[0].at_ms < now_ms - HISTORY_MS_MAX:
            name = row_of(lines[0])
            self._remove(name)
            rows.append(gone(HISTORY, name))
        return rows

    def forget_tenant(self, tenant: str) -> list[str]:
        """Returns the names of the rows to remove."""
        names = [row_of(line) for line in self.of_tenant.get(tenant, ())]
        for name in names:
            self._remove(name)
        return names

    def _add(self, line: Transition) -> None:
        lines = self.of_tenant.setdefault(line.tenant, deque())
        is_late = bool(lines) and lines[-1].seq > line.seq
        lines.append(line)
        if is_late:
            self.of_tenant[line.tenant] = deque(sorted(lines, key=lambda one: one.seq))
        self._lines[row_of(line)] = line
        about = line.rule, line.subject
        self._newest[about] = max(line.seq, self._newest.get(about, 0))
        self.seq = max(self.seq, line.seq)

    def _remove(self, name: str) -> None:
        line = self._lines.pop(name, None)
        if line is None:
            return
        lines = self.of_tenant[line.tenant]
        if lines[0] is line:
            lines.popleft()
        else:
            lines.remove(line)
        if not lines:
            del self.of_tenant[line.tenant]
        if self._newest.get((line.rule, line.subject)) == line.seq:
            del self._newest[line.rule, line.subject]
