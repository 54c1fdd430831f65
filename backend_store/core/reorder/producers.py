"""The state of producers that number their messages, in one partition: the last number of each, and its gaps.

A number is *accepted* once. `last` is the highest number whose turn has come. Below it, the numbers of a gap that was
given up are missing and may still arrive, late. Above it, accepted numbers are held until those before them arrive or
are given up.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Collection, Iterator
from heapq import heappop, heappush
from operator import itemgetter

from backend_store.core.limits import (
    GAPS_PER_PRODUCER_MAX,
    PRODUCERS_PER_PARTITION_MAX,
    RECENT_RUNS_PER_PRODUCER_MAX,
)
from backend_store.core.reorder.records import OrderRecord, ProducerAdvanced, ProducerForgotten

_first = itemgetter(0)


class Producer:
    """One producer's numbers. A new producer has `last` 0, so it is expected to begin with 1.

    If it begins higher (its state here was forgotten, or it starts with a gap), that is treated like any gap.
    """

    __slots__ = ("name", "last", "time_ms", "held", "_order", "_gaps", "_recent")

    def __init__(self, name: str, time_ms: int, last: int = 0):
        self.name = name
        self.last = last
        self.time_ms = time_ms
        self.held: dict[int, int] = {}
        """Number → offset; all numbers are above `last` + 1."""
        self._order: list[int] = []
        """A heap of the numbers of `held`."""
        self._gaps: list[tuple[int, int]] = []
        self._recent: deque[list[int]] = deque(maxlen=RECENT_RUNS_PER_PRODUCER_MAX)

    # ---------------------------------------------------------------------------------------------------- numbers

    def note(self, number: int, offset: int) -> None:
        """Remembers the offset of an accepted message."""
        if self._recent:
            run = self._recent[-1]
            ahead = number - run[0]
            if ahead == run[2] == offset - run[1]:
                run[2] += 1
                return
        self._recent.append([number, offset, 1])

    def original(self, number: int) -> int:
        """Returns the offset of an accepted message, or -1 if it is no longer remembered."""
        if number in self.held:
            return self.held[number]
        for first, offset, count in reversed(self._recent):
            if first <= number < first + count:
                return offset + number - first
        return -1

    def hold(self, number: int, offset: int) -> None:
        self.held[number] = offset
        heappush(self._order, number)

    def advance(self, upto: int) -> tuple[list[int], int]:
        """Releases held messages up to a number, and those after it up to a gap. Returns (offsets, gaps given up)."""
        offsets, given_up = [], 0
        order = self._order
        while order and (order[0] <= upto or order[0] == self.last + 1):
            number = heappop(order)
            if number > self.last + 1:
                self._gaps.append((self.last + 1, number - 1))
                given_up += 1
            self.last = number
            offsets.append(self.held.pop(number))
        self._join_gaps()
        return offsets, given_up

    # ------------------------------------------------------------------------------------------------------- gaps

    def is_missing(self, number: int) -> bool:
        """Whether a number was given up and has not arrived since."""
        return self._gap_with(number) is not None

    def fill(self, number: int) -> None:
        """Notes that a missing number has arrived."""
        at = self._gap_with(number)
        assert at is not None, f"producer {self.name!r}: number {number} is not missing"
        first, last = self._gaps[at]
        self._gaps[at : at + 1] = [(a, b) for a, b in ((first, number - 1), (number + 1, last)) if a <= b]
        self._join_gaps()

    def _gap_with(self, number: int) -> int | None:
        at = bisect_right(self._gaps, number, key=_first) - 1
        return at if at >= 0 and number <= self._gaps[at][1] else None

    def _join_gaps(self) -> None:
        """Joins the oldest gaps if there are too many. Numbers accepted between them count as missing again.

        A duplicate of one is then a late message, delivered twice. Counting missing numbers as accepted would lose
        messages.
        """
        surplus = len(self._gaps) - GAPS_PER_PRODUCER_MAX
        if surplus > 0:
            self._gaps[: surplus + 1] = [(self._gaps[0][0], self._gaps[surplus][1])]

    # ----------------------------------------------------------------------------------------------------- stored

    def record(self) -> ProducerAdvanced:
        recent = tuple((number, offset, count) for number, offset, count in self._recent)
        return ProducerAdvanced(self.name, self.last, self.time_ms, tuple(self._gaps), recent)

    @classmethod
    def restored(cls, record: ProducerAdvanced) -> Producer:
        producer = cls(record.producer, record.time_ms, record.last)
        producer._gaps.extend(record.gaps)
        producer._recent.extend(map(list, record.recent))
        return producer


class Producers:
    """All producers of a partition, the longest idle first, and those that the next commit must store."""

    def __init__(self) -> None:
        self._producers: OrderedDict[str, Producer] = OrderedDict()
        self._changed: dict[str, Producer] = {}
        self._forgotten: set[str] = set()

    def __len__(self) -> int:
        return len(self._producers)

    def get(self, name: str) -> Producer | None:
        return self._producers.get(name)

    def is_full(self, newcomers: int) -> bool:
        """Whether there is no place left after `newcomers` new producers."""
        return len(self._producers) + newcomers >= PRODUCERS_PER_PARTITION_MAX

    def idle(self, before_ms: int, busy: Collection[str]) -> Iterator[str]:
        """Yields the producers that may be forgotten: no message held and none since; the longest idle first."""
        for name, producer in self._producers.items():
            if producer.time_ms >= before_ms:
                return
            if not producer.held and name not in busy:
                yield name

    def longest_idle_ms(self, default: int) -> int:
        """Returns when the longest idle producer sent its last message."""
        return next((producer.time_ms for producer in self._producers.values()), default)

    def add(self, producer: Producer) -> None:
        self._producers[producer.name] = producer

    def heard(self, producer: Producer, now_ms: int) -> None:
        producer.time_ms = now_ms
        self._producers.move_to_end(producer.name)
        self.changed(producer)

    def changed(self, producer: Producer) -> None:
        self._changed[producer.name] = producer

    def forget(self, name: str) -> None:
        del self._producers[name]
        self._changed.pop(name, None)
        self._forgotten.add(name)

    def records(self) -> list[OrderRecord]:
        """Returns records of what changed since the last call."""
        forgotten = sorted(self._forgotten - self._changed.keys())
        records: list[OrderRecord] = [ProducerForgotten(name) for name in forgotten]
        records += [producer.record() for producer in self._changed.values()]
        self._changed.clear()
        self._forgotten.clear()
        return records
