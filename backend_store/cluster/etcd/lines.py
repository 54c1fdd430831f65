"""The output of an etcd watch: cut into lines, and assembled into whole revisions, each once and in order."""

from __future__ import annotations

from backend_store.cluster.core.values import Changes, Event, Revision
from backend_store.cluster.etcd.codec import WatchResult, record_of
from backend_store.cluster.limits import ETCD_ANSWER_BYTES_MAX
from backend_store.model import Unavailable


class Lines:
    """Splits a stream of bytes into whole lines."""

    def __init__(self, bytes_max: int = ETCD_ANSWER_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._parts: list[bytes] = []
        self._held = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the lines that are complete. Raises `Unavailable` for a line that is too long."""
        *whole, rest = data.split(b"\n")
        lines: list[bytes] = []
        for line in whole:
            lines.append(b"".join((*self._parts, line)))
            self._parts.clear()
            self._held = 0
        self._parts.append(rest)
        self._held += len(rest)
        if self._held > self._bytes_max:
            raise Unavailable(f"etcd sent a line of more than {self._bytes_max} bytes")
        return [line for line in lines if line.strip()]


class Assembler:
    """Assembles revisions. `seen` is the last one that was returned; a new connection continues after it."""

    def __init__(self, namespace: bytes, after: Revision):
        self.seen = after
        self._namespace = namespace
        self._begun: list[Event] = []
        self._begun_at = after

    def restart(self) -> None:
        """Called for a new connection: an incomplete revision comes again, whole."""
        self._begun = []

    def take(self, result: WatchResult) -> list[Changes]:
        """Returns the revisions that are complete now. A progress notice is one without events."""
        whole: list[Changes] = []
        for event in result.events:
            at = Revision(event.kv.mod_revision)
            if at <= self.seen:
                continue
            if self._begun and at != self._begun_at:
                whole.append(self._finish())
            self._begun_at = at
            record = None if event.type == "DELETE" else record_of(self._namespace, event.kv)
            self._begun.append(Event(event.kv.key.removeprefix(self._namespace), record))
        if self._begun and not result.fragment:
            whole.append(self._finish())
        is_notice = not (result.events or result.created or result.canceled)
        if is_notice and result.header.revision > self.seen:
            self.seen = Revision(result.header.revision)
            whole.append(Changes(self.seen))
        return whole

    def _finish(self) -> Changes:
        changes = Changes(self._begun_at, tuple(self._begun))
        self._begun = []
        self.seen = self._begun_at
        return changes
