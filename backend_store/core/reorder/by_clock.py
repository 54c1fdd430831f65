"""Order by clock: messages are held until their stamp is `sort_window_ms` old, and released in order of their stamps.

The order is (time, producer, number, offset). The *watermark* is the stamp of the last message released; a message that
arrives below it is late. When a message is released depends on its own stamp and the leader's clock alone, so no other
producer's clock can delay it. Three kinds of wrong clocks:

- More than `CLOCK_AHEAD_MS_MAX` ahead: its messages would wait that long, and their release would make the watermark
  jump. They are *clamped*: ordered by their time of arrival, among themselves by arrival as well.
- Ahead by less: its stamps are accepted. Its own messages wait longer by that much, those of others do not.
- Behind, or set back, by more than the window: its messages are late while other producers advance the watermark.

A message is released at most one window after its arrival, or after its stamp if that is later and accepted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

from backend_store.core.limits import CLOCK_AHEAD_MS_MAX
from backend_store.core.reorder.records import OrderRecord, WatermarkRaised
from backend_store.core.reorder.sorter import Held, Sorted, SorterSettings
from backend_store.model import Original, QueueConfig, Stamp

_ARRIVAL_STEPS = 256
"""Arrivals noted per window: `held_from` is exact to this fraction of the window."""


class _Placed(Sorted):
    """A decision by clock. `places` has (arrival, the stamp that orders it) of messages that are held."""

    __slots__ = ("room", "places", "clamped")

    def __init__(self, now_ms: int, room: int):
        super().__init__(now_ms)
        self.room = room
        """How many more messages may be held after this decision."""
        self.places: list[tuple[int, Stamp]] = []
        self.clamped = 0


class ByClock(SorterSettings):
    """The `Sorter` of a queue that is ordered by its messages' stamps."""

    def __init__(self, config: QueueConfig, label: str):
        super().__init__(config, label)
        self.held = 0
        self._watermark = Stamp()
        self._raised_ms = 0
        """When the watermark was raised, if no record has that yet; else 0."""
        # Messages of one millisecond are released together, so each bucket is sorted only once, at release.
        self._buckets: dict[int, list[tuple[Stamp, int]]] = {}
        self._order: list[int] = []
        """A heap of the milliseconds of `_buckets`."""
        self._arrivals: deque[tuple[int, int]] = deque()
        """(time, first offset) of the messages that arrived between then and the next entry."""

    # ---------------------------------------------------------------------------------------------------- decide

    def decide(self, arrivals: Sequence[Stamp | None], now_ms: int, after: Sorted | None = None) -> _Placed:
        now_ms += self._ahead_ms
        room = after.room if isinstance(after, _Placed) else self._held_max - self.held
        decision = _Placed(now_ms, room)
        latest_us = _latest_us(now_ms)
        watermark, places = self._watermark, decision.places
        for index, stamp in enumerate(arrivals):
            if stamp is None or not 0 < stamp.time_us <= latest_us:
                decision.clamped += stamp is not None and stamp.time_us > latest_us
                stamp = max(_at(stamp, now_ms), watermark)
            elif stamp < watermark:
                decision.late.append(index)
                continue
            if len(places) < room:
                places.append((index, stamp))
            else:
                decision.refused[index] = self._too_many(self._due_ms() - now_ms)
        decision.room -= len(places)
        return decision

    def add(self, decision: Sorted, offsets: Sequence[int]) -> dict[int, Original]:
        assert isinstance(decision, _Placed)
        before = self.held
        for index, stamp in decision.places:
            if offsets[index] >= 0:
                self._put(stamp, offsets[index])
        if self.held > before:
            self._note_arrival(decision.now_ms, next(offsets[i] for i, _ in decision.places if offsets[i] >= 0))
        counts = self.counts
        counts.held += self.held - before
        counts.late += len(decision.late)
        counts.clamped += decision.clamped
        counts.refused += len(decision.refused)
        return {}

    def _put(self, stamp: Stamp, offset: int) -> None:
        ms = stamp.time_us // 1000
        bucket = self._buckets.get(ms)
        if bucket is None:
            bucket = self._buckets[ms] = []
            heappush(self._order, ms)
        bucket.append((stamp, offset))
        self.held += 1

    # --------------------------------------------------------------------------------------------------- release

    def release(self, now_ms: int) -> list[int]:
        due_ms = now_ms + self._ahead_ms - self._window_ms
        released = self._release(due_ms, now_ms)
        self._forget_arrivals(due_ms)
        return released

    def release_all(self, now_ms: int) -> list[int]:
        return self._release(max(self._order, default=0), now_ms)

    def _release(self, due_ms: int, now_ms: int) -> list[int]:
        released: list[int] = []
        while self._order and self._order[0] <= due_ms:
            bucket = self._buckets.pop(heappop(self._order))
            bucket.sort()
            released += [offset for _, offset in bucket]
            assert bucket[0][0] >= self._watermark, f"{bucket[0][0]} is released below {self._watermark}"
            self._watermark, self._raised_ms = bucket[-1][0], now_ms + self._ahead_ms
        self.held -= len(released)
        self.counts.released += len(released)
        return released

    def next_release_ms(self) -> int | None:
        return self._due_ms() - self._ahead_ms if self._order else None

    def _due_ms(self) -> int:
        return self._order[0] + self._window_ms if self._order else 0

    def records(self) -> list[OrderRecord]:
        raised_ms, self._raised_ms = self._raised_ms, 0
        return [WatermarkRaised(self._watermark, raised_ms)] if raised_ms else []

    def purge(self) -> None:
        self.held = 0
        self._buckets.clear()
        self._order.clear()
        self._arrivals.clear()

    # --------------------------------------------------------------------------------------------------- restart

    def restore(self, records: Iterable[OrderRecord], held: Iterable[Held], now_ms: int) -> None:
        floor_ms = 0
        for record in records:
            assert isinstance(record, WatermarkRaised)
            self._watermark, floor_ms = record
        for offset, stamp, arrived_ms in held:
            if stamp is None or not 0 < stamp.time_us <= _latest_us(arrived_ms):
                stamp = _at(stamp, arrived_ms)
            self._put(max(stamp, self._watermark), offset)
            self._note_arrival(arrived_ms, offset)
            floor_ms = max(floor_ms, arrived_ms)
        self._not_before(floor_ms, now_ms)

    def held_from(self, end: int) -> int:
        return self._arrivals[0][1] if self.held else end

    def _note_arrival(self, now_ms: int, offset: int) -> None:
        step_ms = (self._window_ms + CLOCK_AHEAD_MS_MAX) // _ARRIVAL_STEPS + 1
        if not self._arrivals or now_ms >= self._arrivals[-1][0] + step_ms:
            self._arrivals.append((now_ms, offset))

    def _forget_arrivals(self, due_ms: int) -> None:
        """Drops arrivals so old that their messages have been released, whatever their stamps."""
        arrivals = self._arrivals
        if not self.held:
            arrivals.clear()
        while len(arrivals) > 1 and arrivals[1][0] + CLOCK_AHEAD_MS_MAX <= due_ms:
            arrivals.popleft()


def _latest_us(now_ms: int) -> int:
    """Returns the latest stamp that is accepted, in µs."""
    return (now_ms + CLOCK_AHEAD_MS_MAX) * 1000 + 999


def _at(stamp: Stamp | None, now_ms: int) -> Stamp:
    """Returns the stamp of a message that is ordered by its arrival."""
    return Stamp(now_ms * 1000) if stamp is None else Stamp(now_ms * 1000, stamp.producer, stamp.number)
