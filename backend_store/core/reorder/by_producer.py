"""Order by producer: each producer numbers its messages from 1, and they are released in the order of their numbers.

The next number of a producer is released at once, in order of arrival among producers. Behind a gap a message is held
for at most `sort_window_ms`; then the gaps before it are given up, and it is released together with those held before
it. A message that fills such a gap later is late. A number that was accepted before is a duplicate and is dropped.
Messages without a producer or a number have no order of their own and are released as they arrive.

A producer stays known until a new one needs its place and it was idle for the dedupe window. If no producer was idle
for that long, the new one is refused: forgetting a number sooner would take a duplicate for a new message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from backend_store.core.limits import PRODUCERS_PER_PARTITION_MAX
from backend_store.core.reorder.producers import Producer, Producers
from backend_store.core.reorder.records import OrderRecord, ProducerAdvanced
from backend_store.core.reorder.sorter import Held, Sorted, SorterSettings
from backend_store.model import Original, Overloaded, QueueConfig, Stamp

_WAITS_OVER_MAX = 1024
"""Waits that are over and still listed, because a long wait before them keeps them from being removed."""


class _Plan:
    """The state that one producer will have after the decisions of a cycle so far."""

    __slots__ = ("name", "known", "next", "taken", "behind")

    def __init__(self, name: str, known: Producer | None):
        self.name = name
        self.known = known
        """None: the producer is new, or is forgotten in this cycle."""
        self.next = 1 if known is None else known.last + 1
        """The number that is released at once; it is neither held nor taken."""
        self.taken: set[int] = set()
        """The numbers accepted in this cycle."""
        self.behind = 0 if known is None else len(known.held)
        """How many numbers above `next` are held or taken."""

    def is_missing(self, number: int) -> bool:
        known = self.known
        return known is not None and number <= known.last and number not in self.taken and known.is_missing(number)

    def is_accepted(self, number: int) -> bool:
        return number in self.taken or (self.known is not None and number in self.known.held)


class _Cycle:
    """State shared by the decisions of one commit cycle, so that each sees the changes of those before it."""

    __slots__ = ("now_ms", "room", "plans", "newcomers", "forgotten", "idle")

    def __init__(self, now_ms: int, room: int, producers: Producers, forget_before_ms: int):
        self.now_ms = now_ms
        self.room = room
        self.plans: dict[str, _Plan] = {}
        self.newcomers = 0
        self.forgotten: dict[str, None] = {}
        """Producers whose place another producer has taken."""
        self.idle = producers.idle(forget_before_ms, busy=self.plans)
        """Producers whose place a new producer may take."""


class _Numbered(Sorted):
    """A decision by producer. `steps` has (arrival, plan, number) of accepted messages, late ones too; the plan is None
    for a message without a number.
    """

    __slots__ = ("cycle", "plans", "steps", "originals")

    def __init__(self, cycle: _Cycle):
        super().__init__(cycle.now_ms)
        self.cycle = cycle
        self.plans: dict[str, _Plan] = {}
        """The plans of this decision's arrivals, by producer."""
        self.steps: list[tuple[int, _Plan | None, int]] = []
        self.originals: list[tuple[int, _Plan, int]] = []
        """(repeat, plan, number)."""


class _Waiting(NamedTuple):
    arrived_ms: int
    producer: Producer
    number: int
    offset: int

    @property
    def is_over(self) -> bool:
        """True if the gap was filled, or given up for another message."""
        return self.number <= self.producer.last


class ByProducer(SorterSettings):
    """The `Sorter` of a queue that is ordered by its producers' numbers."""

    def __init__(self, config: QueueConfig, label: str):
        super().__init__(config, label)
        self.held = 0
        self._producers = Producers()
        self._ready: list[int] = []
        self._waiting: deque[_Waiting] = deque()
        """Messages behind a gap, in order of arrival; those whose wait is over are removed when they are first."""

    # ---------------------------------------------------------------------------------------------------- decide

    def decide(self, arrivals: Sequence[Stamp | None], now_ms: int, after: Sorted | None = None) -> _Numbered:
        decision = _Numbered(after.cycle if isinstance(after, _Numbered) else self._cycle(now_ms + self._ahead_ms))
        plans, steps = decision.plans, decision.steps
        for index, stamp in enumerate(arrivals):
            if stamp is None or not stamp.producer or stamp.number < 1:
                steps.append((index, None, 0))
                continue
            plan = plans.get(stamp.producer) or self._plan(decision, stamp.producer)
            number = stamp.number
            if plan is None:
                decision.refused[index] = self._too_many_producers(decision.now_ms)
            elif number == plan.next:
                plan.next += 1
                plan.taken.add(number)
                steps.append((index, plan, number))
                if plan.behind:
                    _follow(decision.cycle, plan)
            else:
                self._judge(decision, plan, index, number)
        return decision

    def _cycle(self, now_ms: int) -> _Cycle:
        return _Cycle(now_ms, self._held_max - self.held, self._producers, now_ms - self._dedupe_window_ms)

    def _plan(self, decision: _Numbered, name: str) -> _Plan | None:
        cycle = decision.cycle
        plan = cycle.plans.get(name)
        if plan is None:
            known = self._producers.get(name) if name not in cycle.forgotten else None
            if known is None and not self._make_place(cycle):
                return None
            plan = cycle.plans[name] = _Plan(name, known)
        decision.plans[name] = plan
        return plan

    def _make_place(self, cycle: _Cycle) -> bool:
        """Finds a place for a new producer: a free one, or that of an idle producer. Returns False if there is none."""
        if self._producers.is_full(cycle.newcomers - len(cycle.forgotten)):
            idle = next(cycle.idle, None)
            if idle is None:
                return False
            cycle.forgotten[idle] = None
        cycle.newcomers += 1
        return True

    def _judge(self, decision: _Numbered, plan: _Plan, index: int, number: int) -> None:
        """Decides about a number that is not the next one: late, duplicate, refused or held."""
        cycle = decision.cycle
        if plan.is_missing(number):
            decision.late.append(index)
        elif number < plan.next or plan.is_accepted(number):
            decision.repeats.append(index)
            decision.originals.append((index, plan, number))
            return
        elif cycle.room <= 0:
            due_ms = (self.next_release_ms() or 0) + self._ahead_ms
            decision.refused[index] = self._too_many(due_ms - decision.now_ms)
            return
        else:
            cycle.room -= 1
            plan.behind += 1
        plan.taken.add(number)
        decision.steps.append((index, plan, number))

    def _too_many_producers(self, now_ms: int) -> Overloaded:
        idle_ms = now_ms - self._producers.longest_idle_ms(default=now_ms)
        return Overloaded(
            f"queue {self._label!r}: the limit of {PRODUCERS_PER_PARTITION_MAX} producers per partition is reached "
            f"(PRODUCERS_PER_PARTITION_MAX); the longest idle one sent its last message {idle_ms} ms ago, and is "
            f"forgotten after dedupe_window_ms, {self._dedupe_window_ms} ms",
            retry_after_ms=max(1, self._dedupe_window_ms - idle_ms + 1),
        )

    # ------------------------------------------------------------------------------------------------------- add

    def add(self, decision: Sorted, offsets: Sequence[int]) -> dict[int, Original]:
        assert isinstance(decision, _Numbered)
        self._forget(decision.cycle)
        ready = self._ready
        for index, plan, number in decision.steps:
            offset = offsets[index]
            if plan is not None:
                producer = plan.known or self._join(plan, decision.now_ms)
                if offset >= 0:
                    producer.note(number, offset)
                if number != producer.last + 1:
                    self._put_aside(producer, number, offset, decision.now_ms)
                    continue
                producer.last = number
            if offset >= 0:
                ready.append(offset)
            if plan is not None and producer.held:
                self._advance(producer, number)
        for plan in decision.plans.values():
            if plan.known is not None:
                self._producers.heard(plan.known, decision.now_ms)
        self._count(decision)
        return {index: Original(_original(plan, number)) for index, plan, number in decision.originals}

    def _forget(self, cycle: _Cycle) -> None:
        for name in cycle.forgotten:
            self._producers.forget(name)
        cycle.forgotten.clear()

    def _join(self, plan: _Plan, now_ms: int) -> Producer:
        plan.known = Producer(plan.name, now_ms)
        self._producers.add(plan.known)
        return plan.known

    def _put_aside(self, producer: Producer, number: int, offset: int, now_ms: int) -> None:
        """Fills the gap of a late message, or holds a message that is behind a gap."""
        if number < producer.last:
            producer.fill(number)
            return
        producer.hold(number, offset)
        self._waiting.append(_Waiting(now_ms, producer, number, offset))
        self.held += 1
        if len(self._waiting) > 2 * self.held + _WAITS_OVER_MAX:
            self._waiting = deque(each for each in self._waiting if not each.is_over)

    def _advance(self, producer: Producer, upto: int) -> None:
        offsets, given_up = producer.advance(upto)
        self.held -= len(offsets)
        self._ready += [offset for offset in offsets if offset >= 0]
        self.counts.gaps_given_up += given_up

    def _count(self, decision: _Numbered) -> None:
        counts = self.counts
        counts.held += len(decision.steps) - len(decision.late)
        counts.late += len(decision.late)
        counts.repeats += len(decision.repeats)
        counts.refused += len(decision.refused)

    # --------------------------------------------------------------------------------------------------- release

    def release(self, now_ms: int) -> list[int]:
        return self._release(now_ms + self._ahead_ms - self._window_ms)

    def release_all(self, now_ms: int) -> list[int]:
        return self._release(max((each.arrived_ms for each in self._waiting), default=0))

    def _release(self, due_ms: int) -> list[int]:
        while (first := self._first_waiting()) is not None and first.arrived_ms <= due_ms:
            self._advance(first.producer, first.number)
            self._producers.changed(first.producer)
        released, self._ready = self._ready, []
        self.counts.released += len(released)
        return released

    def _first_waiting(self) -> _Waiting | None:
        """Returns the message that has waited longest, or None."""
        waiting = self._waiting
        while waiting and waiting[0].is_over:
            waiting.popleft()
        return waiting[0] if waiting else None

    def next_release_ms(self) -> int | None:
        if self._ready:
            return 0
        first = self._first_waiting()
        return first.arrived_ms + self._window_ms - self._ahead_ms if first is not None else None

    def held_from(self, end: int) -> int:
        self._first_waiting()
        waits = (each.offset for each in self._waiting if each.offset >= 0)
        return min(next(waits, end), min(self._ready, default=end))

    def records(self) -> list[OrderRecord]:
        return self._producers.records()

    def purge(self) -> None:
        while (first := self._first_waiting()) is not None:
            self._advance(first.producer, first.number)
            self._producers.changed(first.producer)
        self._ready.clear()

    # --------------------------------------------------------------------------------------------------- restart

    def restore(self, records: Iterable[OrderRecord], held: Iterable[Held], now_ms: int) -> None:
        rows = [record for record in records if isinstance(record, ProducerAdvanced)]
        for row in sorted(rows, key=lambda row: row.time_ms):
            self._producers.add(Producer.restored(row))
        floor_ms = max((row.time_ms for row in rows), default=0)
        for offset, stamp, arrived_ms in held:
            floor_ms = max(floor_ms, arrived_ms)
            self._take_up(offset, stamp, arrived_ms)
        self._not_before(floor_ms, now_ms)

    def _take_up(self, offset: int, stamp: Stamp | None, arrived_ms: int) -> None:
        """Holds a message again after a restart, or makes it ready if its turn has come."""
        if stamp is None or not stamp.producer or stamp.number < 1:
            self._ready.append(offset)
            return
        producer = self._producers.get(stamp.producer)
        if producer is None:
            producer = Producer(stamp.producer, arrived_ms)
            self._producers.add(producer)
        if stamp.number <= producer.last:
            self._ready.append(offset)
            return
        self._put_aside(producer, stamp.number, offset, arrived_ms)
        self._advance(producer, producer.last)


def _follow(cycle: _Cycle, plan: _Plan) -> None:
    """Advances a plan over numbers that were behind a gap which is now filled."""
    while plan.behind and plan.is_accepted(plan.next):
        plan.next += 1
        plan.behind -= 1
        cycle.room += 1


def _original(plan: _Plan, number: int) -> int:
    assert plan.known is not None, f"producer {plan.name!r}: number {number} repeats nothing"
    return plan.known.original(number)
