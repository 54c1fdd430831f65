"""Spills messages that wait behind long-locked keys of a strictly ordered queue to disk, and reads them back.

The rows are an index that a restart rebuilds by reading the log again, so rows of an earlier process mean nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from backend_store.core.log.records import RowParked, RowUnparked
from backend_store.core.log.sublogs import SCHEDULED, SORTING
from backend_store.core.ready.priorities import Lane
from backend_store.core.ready.strict import StrictRuns
from backend_store.node.limits import READS_PER_TAKE_MAX

if TYPE_CHECKING:
    from backend_store.node.views.view import View

PARKED_ROWS_SWEPT = 256
"""Rows of an earlier process that one commit deletes."""
SPILL_MS = 1_000
"""How long a key must have been locked before the messages behind it leave memory."""


class KeySpill:
    """The spill of one view whose lanes are in strict order; the view owns it."""

    def __init__(self, view: View):
        self._view = view
        self._first_number = view.partition.log_ms() << 20
        """Key lines made by this process have higher numbers."""
        self._has_earlier = True

    def _lanes(self) -> list[tuple[Lane, StrictRuns]]:
        return [(lane, lane.runs) for lane in self._view.core.lanes.all if isinstance(lane.runs, StrictRuns)]

    def _place(self, lane: Lane) -> int:
        """Key prefix of the lines: each group of a stream has its own lines of the same shelf."""
        return self._view.number << 8 | lane.shelf

    # ------------------------------------------------------------------------------------------------------ commits

    def decide(self, now_ms: int) -> list[RowParked | RowUnparked]:
        """Rows for the commit that is being prepared."""
        records: list[RowParked | RowUnparked] = self._earlier() if self._has_earlier else []
        for lane, runs in self._lanes():
            spill = runs.take_spill(now_ms)
            if spill is not None:
                place, first = self._place(lane), self._first_number
                records += [RowParked(place, first + r.number, r.position, r.base, r.bits) for r in spill.rows]
                records += [RowUnparked(place, first + number, position) for number, position in spill.done]
        return records

    def _earlier(self) -> list[RowParked | RowUnparked]:
        """Some rows of an earlier process, to be deleted."""
        rows = self._view.partition.reader.parked_below(self._view.number, self._first_number, PARKED_ROWS_SWEPT)
        self._has_earlier = len(rows) == PARKED_ROWS_SWEPT
        return [RowUnparked(*row) for row in rows]

    def committed(self) -> None:
        for _, runs in self._lanes():
            runs.spilled()
            for state in runs.take_idle():
                self._view.core.forget_idle(state)

    def next_ms(self) -> int | None:
        """When to check again what may leave memory; None if nothing may."""
        if any(runs.wants_spill for _, runs in self._lanes()):
            return self._view.partition.steady_ms() + SPILL_MS
        return None

    def tick(self) -> None:
        if any(runs.wants_spill for _, runs in self._lanes()):
            self._view.partition.request()

    # ----------------------------------------------------------------------------------------------------- delivery

    def bring(self, lane: Lane) -> int:
        """Reads back the messages of keys that are free again. Returns the number of reads."""
        runs, reads = lane.runs, 0
        if not isinstance(runs, StrictRuns):
            return 0
        while (wanted := runs.wanted) is not None and reads < READS_PER_TAKE_MAX:
            number, position = wanted
            row = self._view.partition.reader.parked(self._place(lane), self._first_number + number, position)
            state = None
            if row is not None:
                for shelf in (lane.shelf, SCHEDULED + lane.shelf, SORTING):
                    state = self._view.find(shelf, row[0])
                    if state is not None:
                        break
            if state is not None and row is not None and state.shelf == SORTING and row[1] & ~state.had_turns:
                state.turns = [*(state.turns or ()), row[1]]  # it left memory in between
            runs.unpark(number, state, row[1] if row is not None else 0)
            reads += 1
        return reads

    def wait(self, now_ms: int) -> None:
        """Nothing can be leased now: sets a timer for lanes that paused their reading."""
        for lane, runs in self._lanes():
            if not lane.more:
                continue
            again_ms = runs.reads_on_ms(now_ms)
            if again_ms is not None:
                self._view.partition.wake_at(again_ms)
            elif runs.wants_more:
                self._view.partition.look_again(self._view)
