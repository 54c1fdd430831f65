"""What SLOs have counted, over the end of a process: a row of each hour in which something was counted.

Whoever tells of alerts writes them down, at the end of each minute and of the process; every gateway counts for itself
and reads them when it begins.
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
    """What a rule counted in an hour. `changed_at_ms`: of the rule; what was counted before fits another one."""

    changed_at_ms: int
    minutes: list[Counted]


_decode = msgspec.msgpack.Decoder(Hour).decode


class Budgets:
    """By rule."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        self._of: dict[str, Budget] = {}

    def of(self, rule: Rule) -> Budget:
        """The rule's, with what was written down of it."""
        found = self._of.get(rule.id)
        if found is None:
            found = self._of[rule.id] = Budget(self._written(rule))
        return found

    def known(self, rule: Rule) -> Budget | None:
        """The rule's, where something was asked about it before."""
        return self._of.get(rule.id)

    def forget(self, rule_id: str) -> None:
        self._of.pop(rule_id, None)

    def changed(self, rules: Iterable[Rule]) -> list[Document]:
        """The rows of what was counted since this was asked before."""
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
                log.warning("what an SLO had counted does not read", rule=rule.id, error=str(error))
                continue
            if hour.changed_at_ms == rule.updated_at_ms:
                found += hour.minutes
        return found
