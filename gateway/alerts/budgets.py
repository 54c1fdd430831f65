"""Error budgets of SLOs that survive the process: a stored row for each hour in which requests were counted.

The gateway that has the duty writes the rows, at the end of each minute and of the process; every gateway counts for
itself and reads the rows when it begins.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import structlog

from backend_store.client import Document, Documents, StorageCorrupt
from gateway.alerts.core.rules import Rule
from gateway.alerts.core.slo import HOURS_KEPT, Budget, Counted
from gateway.alerts.stored import BUDGETS, budget_place, put

log = structlog.get_logger("pushq.alerts")


class Hour(msgspec.Struct, frozen=True, array_like=True):
    """A rule's counts in an hour. `changed_at_ms`: the version of the rule; counts of an older one are not used."""

    changed_at_ms: int
    minutes: list[Counted]


_decode = msgspec.msgpack.Decoder(Hour).decode


class Budgets:
    """Budgets by rule; owned by `Sources`."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        self._of: dict[str, Budget] = {}

    def of(self, rule: Rule) -> Budget:
        """The rule's budget, loaded from its rows on first use."""
        found = self._of.get(rule.id)
        if found is None:
            found = self._of[rule.id] = Budget(self._written(rule))
        return found

    def known(self, rule: Rule) -> Budget | None:
        """The rule's budget if it is loaded."""
        return self._of.get(rule.id)

    def forget(self, rule_id: str) -> None:
        self._of.pop(rule_id, None)

    def changed(self, rules: Iterable[Rule]) -> list[Document]:
        """The rows of what was counted since the last call."""
        return [
            put(BUDGETS, budget_place(rule.id, hour), Hour(rule.updated_at_ms, minutes))
            for rule in rules
            if (budget := self._of.get(rule.id)) is not None
            for hour, minutes in budget.take_changed().items()
        ]

    def _written(self, rule: Rule) -> list[Counted]:
        found: list[Counted] = []
        for number in range(HOURS_KEPT):
            try:
                row = self._documents.get(BUDGETS, budget_place(rule.id, number))
                if row is None:
                    continue
                hour = _decode(row)
            except (StorageCorrupt, msgspec.MsgspecError) as error:
                log.warning("stored SLO counts cannot be read", rule=rule.id, error=str(error))
                continue
            if hour.changed_at_ms == rule.updated_at_ms:
                found += hour.minutes
        return found
