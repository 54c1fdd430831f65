"""Reorders a queue's messages between log and delivery: messages wait for their turn and are released in order.

Arriving messages are appended on a shelf of their own. Each commit also stores which messages are released, as rows of
the release order; delivery reads these rows instead of the log.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence, Set
from typing import TYPE_CHECKING

import structlog

from backend_store.core.log.chunk import Chunk, clear_column, holes
from backend_store.core.log.records import OrderDropped, OrderReleased, PartitionState, Record
from backend_store.core.log.sublogs import SORTING
from backend_store.core.ready.priorities import Lane
from backend_store.core.reorder.by_clock import ByClock
from backend_store.core.reorder.by_producer import ByProducer
from backend_store.core.reorder.records import OrderRecord
from backend_store.core.reorder.sorter import Held, Sorted, Sorter
from backend_store.model import Offset, Original, QueueConfig, Stamp
from backend_store.node.limits import ORDER_ROWS_TIDIED_MAX, RELEASED_PER_ROW_MAX
from backend_store.node.log.row_reader import OrderRow
from backend_store.node.views.reorder_repair import ReorderRepair

if TYPE_CHECKING:
    from backend_store.node.partition import Partition
    from backend_store.node.views.view import View

log = structlog.get_logger("pushq.sorting")

ORDER_LANE = 0
HEAD_LANE = 1
"""Late messages, if the queue delivers them before all others."""


def make_sorter(config: QueueConfig, label: str) -> Sorter:
    return ByClock(config, label) if config.sequencing == "clock" else ByProducer(config, label)


class Reorder:
    """The reorder buffer of one partition, which owns it."""

    def __init__(self, partition: Partition, config: QueueConfig):
        self.sorter = make_sorter(config, partition.label)
        self._partition = partition
        self._bases: list[int] = []
        """Chunks in which messages may wait, ascending."""
        self._waiting: dict[int, int] = {}
        """Base → the messages that wait for their turn; a message that ends while it waits is removed."""
        self._released_now: dict[int, int] = {}
        """Base → messages released by the commit in flight; not visible before that is durable."""
        self.held = 0
        """The number of waiting messages."""
        self._marks: deque[tuple[int, int]] = deque()
        """(number of a released batch, end of the log at that time): tells what a restart need not read."""
        self._released = [False, False]
        self._low = [0, 0]
        """By lane: below these numbers no row of the release order is left."""
        self.is_untidy = False
        """The last commit could not delete all used-up rows."""
        self._broken: dict[tuple[int, bool], bool] = {}
        """Unreadable rows, as (number, is_head) → whether their messages were found again."""
        self._rescue: ReorderRepair | None = None

    # ------------------------------------------------------------------------------------------------------ a cycle

    def decide(self, stamps: Sequence[Stamp | None], now_ms: int, after: Sorted | None) -> Sorted:
        return self.sorter.decide(stamps, now_ms, after)

    def take_in(self, decision: Sorted, offsets: Sequence[int]) -> dict[int, Original]:
        return self.sorter.add(decision, offsets)

    def placed(self, chunks: Sequence[Chunk]) -> None:
        """Notes chunks of this cycle whose messages may wait."""
        for chunk in chunks:
            if chunk.shelf == SORTING:
                self._bases.append(chunk.base)
                self._wait(chunk.base, (1 << chunk.count) - 1 & ~holes(chunk))

    def _wait(self, base: int, bits: int) -> None:
        self._waiting[base] = bits
        self.held += bits.bit_count()

    def waiting(self, base: int) -> int:
        """Which messages of a chunk wait for their turn, or for the commit that releases them."""
        return self._waiting.get(base, 0) | self._released_now.get(base, 0)

    def waiting_bases(self) -> Set[int]:
        return self._waiting.keys() | self._released_now.keys()

    def left(self, base: int, bits: int) -> None:
        """Messages were released or ended: they wait no longer."""
        waiting = self._waiting.get(base, 0)
        if gone := waiting & bits:
            self.held -= gone.bit_count()
            if gone == waiting:
                del self._waiting[base]
            else:
                self._waiting[base] = waiting ^ gone

    def release(
        self, state: PartitionState, late: Sequence[Chunk], now_ms: int
    ) -> tuple[list[Record], list[OrderRecord]]:
        """Releases messages whose turn has come, as records of the commit; `late` goes before all others."""
        records: list[Record] = []
        for chunk in late:
            records.append(OrderReleased(state.released, True, [(chunk.base, n) for n in range(chunk.count)]))
            state.released += 1
            self._released[HEAD_LANE] = True
        # Messages that ended while they waited get a turn too, but are not released.
        turns = (self._place(offset) for offset in self.sorter.release(now_ms))
        places = [(base, index) for base, index in turns if self._waiting.get(base, 0) >> index & 1]
        for start in range(0, len(places), RELEASED_PER_ROW_MAX):
            row = places[start : start + RELEASED_PER_ROW_MAX]
            records.append(OrderReleased(state.released, False, row))
            for base, bits in runs_of(row):
                self.left(base, bits)
                self._released_now[base] = self._released_now.get(base, 0) | bits
            self._marks.append((state.released, state.end))
            state.released += 1
            self._released[ORDER_LANE] = True
        state.held_from = self.sorter.held_from(state.end)
        while self._marks and self._marks[0][1] <= state.held_from:
            state.order_from = self._marks.popleft()[0] + 1
        self._forget_below(state.held_from)
        return records, self.sorter.records()

    def _place(self, offset: int) -> tuple[int, int]:
        base = self._bases[bisect_right(self._bases, offset) - 1]
        return base, offset - base

    def _forget_below(self, offset: int) -> None:
        """Drops chunks in which nothing waits, in large steps: removing from a list's front is slow."""
        gone = bisect_right(self._bases, offset) - 1
        if gone > len(self._bases) // 2:
            del self._bases[:gone]

    def committed(self, view: View) -> None:
        """What was released is durable and may be delivered."""
        for number, lane in enumerate(view.core.lanes.all):
            lane.more = lane.more or self._released[number]
        self._released = [False, False]
        self._released_now = {}
        view.core.held = self.held
        if (next_ms := self.next_ms()) is not None:
            self._partition.wake_at(next_ms)
        lost = [row for row, is_found in self._broken.items() if not is_found]
        if lost and self._rescue is None:
            self._rescue = ReorderRepair(view, lost, self._waiting)
            self._partition.node.soon(self._go_on)

    def tidy(self, is_gone: Callable[[int], bool]) -> list[Record]:
        """Deletes the first rows of the release order, as far as all their chunks are gone."""
        records: list[Record] = []
        for lane in (ORDER_LANE, HEAD_LANE):
            while len(records) < ORDER_ROWS_TIDIED_MAX:
                row = self._partition.reader.order(lane == HEAD_LANE, self._low[lane])
                if row is None or not self._is_used_up(row, lane, is_gone):
                    break
                records.append(OrderDropped(row[0], lane == HEAD_LANE))
                self._low[lane] = row[0] + 1
        self.is_untidy = len(records) == ORDER_ROWS_TIDIED_MAX
        return records

    def _is_used_up(self, row: OrderRow, lane: int, is_gone: Callable[[int], bool]) -> bool:
        number, places = row
        if places is None:
            self._met_broken(number, lane)
            return self._broken[number, lane == HEAD_LANE]
        return all(map(is_gone, {base for base, _ in places}))

    def _met_broken(self, number: int, lane: int) -> None:
        """Notes an unreadable row: its messages are searched for between commits."""
        if (number, lane == HEAD_LANE) not in self._broken:
            self._broken[number, lane == HEAD_LANE] = False
            log.error("broken row of a release order", queue=self._partition.label, number=number)
            self._partition.node.met_broken_row()
            self._partition.request()

    def _go_on(self) -> None:
        """Continues the search, a part in each turn of the loop."""
        rescue = self._rescue
        if rescue is None or self._partition.closed:
            return
        if rescue.go_on():
            self._partition.node.soon(self._go_on)
            return
        self._rescue = None
        self._broken.update(dict.fromkeys(rescue.rows, True))
        self.is_untidy = True
        self._partition.request()

    # ----------------------------------------------------------------------------------------------------- delivery

    def scan(self, view: View, lane: Lane) -> None:
        """Reads the next row of the release order into a lane's runs."""
        row = self._partition.released_row(lane.shelf == HEAD_LANE, lane.next_scan)
        if row is None:
            lane.more = False
            return
        lane.next_scan = Offset(row[0] + 1)
        if row[1] is None:
            self._met_broken(row[0], lane.shelf)
            return
        for base, bits in runs_of(row[1]):
            state = view.find(SORTING, base)
            if state is None:
                continue
            state.turns = [*(state.turns or ()), bits]
            if state.due:
                view.core.delay_again(base, self._partition.steady_ms())
            if free := bits & state.free:
                lane.runs.push(state, free)

    # --------------------------------------------------------------------------------------------------------- time

    def next_ms(self) -> int | None:
        """When the next message's turn comes, by the steady clock; messages wait by the log's clock."""
        next_ms = self.sorter.next_release_ms()
        return None if next_ms is None else self._partition.steady_of(next_ms)

    def tick(self, now_ms: int) -> None:
        next_ms = self.next_ms()
        if next_ms is not None and next_ms <= now_ms:
            self._partition.request()

    def purged(self, view: View) -> None:
        """Everything stored so far is gone, including what waited."""
        self.sorter.purge()
        for lane in view.core.lanes.all:
            lane.next_scan = Offset(self._partition.state.released)
            lane.more = False
        view.core.held = self.held = 0
        self._rescue = None
        self._broken.clear()
        self._bases.clear()
        self._waiting.clear()
        self._released_now.clear()

    def restore(self, view: View, records: Sequence[OrderRecord]) -> None:
        """After a start: restores the messages that still wait for their turn."""
        self.sorter.restore(records, list(self._held(view)), self._partition.log_ms())
        self._marks.append((self._partition.state.released - 1, self._partition.state.end))
        view.core.held = self.held

    def _held(self, view: View) -> Iterator[Held]:
        partition = self._partition
        released = self._released_since(partition.state.order_from)
        chunk = partition.chunk_at(partition.state.held_from, SORTING)
        while chunk is not None:
            settled = partition.progress(chunk.base).settled | holes(chunk) | released.get(chunk.base, 0)
            settled |= (1 << max(0, partition.state.held_from - chunk.base)) - 1
            late = clear_column(chunk, "late")
            self.placed([chunk])
            self.left(chunk.base, settled)
            for index, stamp in enumerate(stamps_of(chunk)):
                if late and late[index]:
                    self.left(chunk.base, 1 << index)
                elif not settled >> index & 1:
                    yield Held(chunk.base + index, stamp, chunk.time_ms)
            chunk = partition.read(Offset(chunk.base + 1), SORTING)

    def _released_since(self, number: int) -> dict[int, int]:
        """Messages that had their turn, as base → bits."""
        found: dict[int, int] = {}
        row = self._partition.reader.order(False, number)
        while row is not None:
            for base, bits in runs_of(row[1] or ()):
                found[base] = found.get(base, 0) | bits
            row = self._partition.reader.order(False, row[0] + 1)
        return found


def runs_of(places: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Groups places into (base, bits), one per stretch of a chunk's messages in ascending order."""
    base = last = -1
    bits = 0
    for at, index in places:
        if at != base or index < last:
            if bits:
                yield base, bits
            base, bits = at, 0
        bits |= 1 << index
        last = index
    if bits:
        yield base, bits


def stamps_of(chunk: Chunk) -> list[Stamp | None]:
    """The stamps that producers gave a chunk's messages. A message that moved here, such as a redriven one, is ordered
    by its arrival: its `at` tells.
    """
    times, names, numbers, moved = (clear_column(chunk, name) for name in ("ts", "pr", "ps", "at"))
    out: list[Stamp | None] = []
    for index in range(chunk.count):
        time_us = (times[index] if times else None) or 0
        name = (names[index] if names else None) or ""
        number = (numbers[index] if numbers else None) or 0
        is_placed = (time_us or name) and not (moved and moved[index])
        out.append(Stamp(time_us, name, number) if is_placed else None)
    return out
