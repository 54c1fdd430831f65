"""Sorted queues in a world of bad clocks, a reordering network and a process that ends at any point.

A seed draws the faults: skewed, drifting and jumping clocks, latencies up to beyond the window, lost requests and
answers (so repeats), crashes before and after a commit, a full queue. `SIMULATION_SEEDS=2000` runs more of them.
"""

from __future__ import annotations

import copy
import os
from collections import Counter
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random
from typing import Literal, NamedTuple

import pytest

from backend_store.core.limits import CLOCK_AHEAD_MS_MAX, GAPS_PER_PRODUCER_MAX
from backend_store.core.reorder.hlc import HybridClock
from backend_store.core.reorder.records import ProducerAdvanced
from backend_store.model import Original, Overloaded, Stamp
from tests.support.seeds import worlds
from tests.support.sorted_log import START_MS, Accepted, Answer, Crash, SortedLog, config

SEEDS = int(os.environ.get("SIMULATION_SEEDS", "8"))
TICK_MS = 10
SENDING_MS = 4_000
ENDS_MS = 120_000
HOUR_MS = 3_600_000
FEW_HELD_MAX = 1000
"""A queue that may hold more never refuses a message here."""

Kind = Literal["producer", "clock"]

kinds = pytest.mark.parametrize("kind", ["producer", "clock"])
seeds = pytest.mark.parametrize("seed", worlds(SEEDS))


# ------------------------------------------------------------------------------------------------------ the world


@dataclass
class Faults:
    """What goes wrong in one world."""

    window_ms: int = 500
    latency_ms_max: int = 50
    lost: float = 0.0
    """Of requests, and of answers."""
    crashes: float = 0.0
    """Of cycles that end the process."""
    clock_set: float = 0.0
    """Of crashes after which the leader's clock is another one."""
    held_max: int = 100_000

    @classmethod
    def drawn(cls, random: Random) -> Faults:
        window_ms = random.choice([50, 300, 1000])
        return cls(
            window_ms=window_ms,
            latency_ms_max=random.choice([20, window_ms // 2, window_ms, 3 * window_ms]),
            lost=random.choice([0, 0.01, 0.1]),
            crashes=random.choice([0, 0.005, 0.05]),
            held_max=random.choice([15, 100_000, 100_000]),
        )


class Clock:
    """A producer's physical clock."""

    def __init__(self, random: Random, *, skew_ms: int = 0, drift: float = 0.0, jumps: float = 0.0):
        self._random = random
        self._ahead_ms = skew_ms
        self._drift = drift
        self._jumps = jumps

    @classmethod
    def drawn(cls, random: Random) -> Clock:
        skew_ms = random.choice([0, 0, random.randint(-300, 300), random.randint(-5 * HOUR_MS, 5 * HOUR_MS)])
        drift, jumps = random.choice([0, 0.01, -0.01]), random.choice([0, 0, 0.02])
        return cls(random, skew_ms=skew_ms, drift=drift, jumps=jumps)

    def now_us(self, true_ms: int) -> int:
        if self._random.random() < self._jumps:
            self._ahead_ms += self._random.choice([-1, 1]) * self._random.choice([40, 700, 60_000, 2 * HOUR_MS])
        return int((true_ms + self._ahead_ms + self._drift * (true_ms - START_MS)) * 1000)


class Attempt(NamedTuple):
    arrives_ms: int
    tie: int
    stamp: Stamp


class Sender:
    """One producer: stamps and numbers its messages, and sends each until it is told that it is stored."""

    def __init__(self, name: str, random: Random, clock: Clock, faults: Faults, gap_ms: int):
        self.name = name
        self.random = random
        self.clock = clock
        self.faults = faults
        self.unconfirmed: dict[Stamp, None] = {}
        self._gap_ms = gap_ms
        self._hybrid = HybridClock()
        self._number = 0

    def schedule(self) -> list[Attempt]:
        """First attempts of everything it will send."""
        attempts, sent_ms = [], START_MS + self.random.randint(0, 500)
        while sent_ms < START_MS + SENDING_MS:
            for _ in range(self.random.choice([1, 1, 1, 5])):
                self._number += 1
                stamp = Stamp(self._hybrid.tick(self.clock.now_us(sent_ms)), self.name, self._number)
                self.unconfirmed[stamp] = None
                attempts.append(self.attempt(stamp, sent_ms))
            sent_ms += self.random.randint(1, 2 * self._gap_ms)
        return attempts

    def attempt(self, stamp: Stamp, sent_ms: int) -> Attempt:
        latency_ms = int(self.faults.latency_ms_max * self.random.random() ** 3)
        return Attempt(sent_ms + 1 + latency_ms, self.random.getrandbits(32), stamp)


@dataclass
class World:
    """Runs until everything is confirmed and released; checks what must hold after each cycle."""

    kind: Kind
    random: Random
    faults: Faults
    senders: list[Sender]
    queue: SortedLog = field(init=False)
    crashes_ms: list[int] = field(default_factory=list)
    leader_ahead_ms: int = 0

    def __post_init__(self) -> None:
        settings = {"sort_window_ms": self.faults.window_ms, "sort_held_messages_max": self.faults.held_max}
        self.queue = SortedLog(config(self.kind, **settings))
        self.checks = checks_of(self)
        self._by_name = {sender.name: sender for sender in self.senders}
        self._attempts = [attempt for sender in self.senders for attempt in sender.schedule()]
        self._attempts.sort(reverse=True)
        self._retries: list[Attempt] = []

    def run(self) -> SortedLog:
        true_ms = START_MS
        while self._attempts or self._retries or self.queue.sorter.held:
            true_ms += TICK_MS
            assert true_ms < START_MS + ENDS_MS, f"{self.queue.sorter.held} messages are still held"
            self._tick(true_ms)
        self.checks.end()
        return self.queue

    def _tick(self, true_ms: int) -> None:
        calls = self._calls(true_ms)
        crash = self._crash()
        now_ms = true_ms + self.leader_ahead_ms
        answers = self.queue.cycle(*calls, now_ms=now_ms, crash=crash)
        for stamp, answer in zip([stamp for call in calls for stamp in call], answers, strict=True):
            self.checks.answered(stamp, answer)
            self._answer(stamp, answer, true_ms)
        if crash is not None:
            self._crashed(true_ms)
        self.checks.cycle(true_ms)
        assert self.queue.sorter.held <= self.faults.held_max
        if self.random.random() < 0.02 and not self.faults.clock_set:
            self._compare_with_a_restart(true_ms + self.leader_ahead_ms)

    def _calls(self, true_ms: int) -> list[list[Stamp]]:
        calls: list[list[Stamp]] = []
        while self._attempts and self._attempts[-1].arrives_ms <= true_ms:
            heappush(self._retries, self._attempts.pop())
        while self._retries and self._retries[0].arrives_ms <= true_ms:
            attempt = heappop(self._retries)
            sender = self._by_name[attempt.stamp.producer]
            if sender.random.random() < self.faults.lost:
                self._send_again(attempt.stamp, true_ms)
            elif calls and sender.random.random() < 0.7:
                calls[-1].append(attempt.stamp)
            else:
                calls.append([attempt.stamp])
        return calls

    def _crash(self) -> Crash:
        if self.random.random() < self.faults.crashes:
            return self.random.choice(["before the commit", "after the commit"])
        return None

    def _crashed(self, true_ms: int) -> None:
        self.crashes_ms.append(true_ms)
        if self.random.random() < self.faults.clock_set:
            self.leader_ahead_ms = self.random.choice([-1, 1]) * self.random.choice([0, 100, 3000, HOUR_MS])
            self.queue.restart(true_ms + self.leader_ahead_ms)

    def _answer(self, stamp: Stamp, answer: Answer, true_ms: int) -> None:
        sender = self._by_name[stamp.producer]
        told = answer is not None and sender.random.random() >= self.faults.lost
        if told and not isinstance(answer, Overloaded):
            sender.unconfirmed.pop(stamp, None)
        elif stamp in sender.unconfirmed:
            self._send_again(stamp, true_ms)

    def _send_again(self, stamp: Stamp, true_ms: int) -> None:
        sender = self._by_name[stamp.producer]
        heappush(self._retries, sender.attempt(stamp, true_ms + sender.random.randint(50, 400)))

    def _compare_with_a_restart(self, now_ms: int) -> None:
        before, after = copy.deepcopy(self.queue.sorter), self.queue.restored(now_ms)
        assert before.next_release_ms() == after.next_release_ms()
        assert before.release_all(now_ms) == after.release_all(now_ms)


# ----------------------------------------------------------------------------------------------------- the checks


class Checks:
    """What holds for every sorted queue; of a queue by clock whose leader's own clock is set, no more than that."""

    def __init__(self, world: World):
        self.world = world
        self._arrived_ms: list[int] = []
        self._releases_seen = 0

    def answered(self, stamp: Stamp, answer: Answer) -> None:
        """Called before the cycle's releases are looked at."""
        assert not isinstance(answer, Overloaded) or self.world.faults.held_max < FEW_HELD_MAX

    def cycle(self, true_ms: int) -> None:
        queue = self.world.queue
        for offset in range(len(self._arrived_ms), len(queue.log)):
            self._arrived_ms.append(true_ms)
            self.stored(offset)
        for place in range(self._releases_seen, len(queue.released)):
            self.released(queue.released[place][0], true_ms)
        self._releases_seen = len(queue.released)

    def stored(self, offset: int) -> None:
        """It is on the disk, whoever was told."""

    def released(self, offset: int, true_ms: int) -> None:
        self.leaves_in_time(self._arrived_ms[offset], CLOCK_AHEAD_MS_MAX + self.world.faults.window_ms, true_ms)

    def leaves_in_time(self, since_ms: int, wait_ms: int, true_ms: int) -> None:
        """Within a tick, but for cycles lost in crashes; a leader that took another clock may begin the wait anew."""
        crashes = sum(since_ms <= crash_ms <= true_ms for crash_ms in self.world.crashes_ms)
        if self.world.faults.clock_set:
            wait_ms *= 1 + crashes
        assert true_ms < since_ms + wait_ms + TICK_MS * (1 + crashes)

    def end(self) -> None:
        """Nothing was lost, nothing came twice: each stored message was released, or was late."""
        queue = self.world.queue
        released = Counter(offset for offset, _ in queue.released)
        late = {offset for offset, entry in enumerate(queue.log) if entry.is_late}
        assert set(released.values()) <= {1}
        assert released.keys() | late == set(range(len(queue.log))) and not released.keys() & late
        assert not any(sender.unconfirmed for sender in self.world.senders)


class ClockChecks(Checks):
    """Stamps never decrease; late is what lies below the last release, and nothing else; each leaves when it is due."""

    def __init__(self, world: World):
        super().__init__(world)
        self._top = Stamp()

    def _place(self, stamp: Stamp | None, arrived_ms: int) -> Stamp:
        """What it is ordered by: a clock too far ahead counts as none."""
        assert stamp is not None
        is_clamped = stamp.time_us // 1000 > arrived_ms + CLOCK_AHEAD_MS_MAX
        return stamp._replace(time_us=arrived_ms * 1000) if is_clamped else stamp

    def answered(self, stamp: Stamp, answer: Answer) -> None:
        super().answered(stamp, answer)
        if isinstance(answer, Accepted):
            arrived_ms = self.world.queue.log[answer.offset].arrived_ms
            assert answer.is_late == (self._place(stamp, arrived_ms) < self._top)

    def released(self, offset: int, true_ms: int) -> None:
        arrived_ms = self._arrived_ms[offset]
        place = self._place(self.world.queue.log[offset].stamp, arrived_ms)
        assert place >= self._top
        self._top = place
        due_ms = max(arrived_ms, place.time_us // 1000 + self.world.faults.window_ms)
        assert true_ms >= due_ms
        self.leaves_in_time(due_ms, 0, true_ms)


class ProducerChecks(Checks):
    """Each producer's numbers rise; each is stored once, and its repeats are known; nobody waits beyond the window."""

    def __init__(self, world: World):
        super().__init__(world)
        self._top: Counter[str] = Counter()
        self._known: dict[Stamp, int] = {}
        self._frayed: set[str] = set()
        """Producers that had more gaps at a time than are known one by one: a repeat may pass for a missing number."""

    def answered(self, stamp: Stamp, answer: Answer) -> None:
        super().answered(stamp, answer)
        if isinstance(answer, Accepted):
            assert answer.is_late == (stamp.number < self._top[stamp.producer])
        elif isinstance(answer, Original):
            log = self.world.queue.log
            assert log[answer.offset].stamp == stamp if answer.offset >= 0 else stamp in self._known

    def cycle(self, true_ms: int) -> None:
        super().cycle(true_ms)
        for row in self.world.queue.stored():
            if isinstance(row, ProducerAdvanced) and len(row.gaps) == GAPS_PER_PRODUCER_MAX:
                self._frayed.add(row.producer)

    def stored(self, offset: int) -> None:
        stamp, _, is_late = self.world.queue.log[offset]
        assert stamp is not None
        if self._known.setdefault(stamp, offset) != offset:
            assert is_late and stamp.producer in self._frayed

    def released(self, offset: int, true_ms: int) -> None:
        stamp = self.world.queue.log[offset].stamp
        assert stamp is not None and stamp.number > self._top[stamp.producer]
        self._top[stamp.producer] = stamp.number
        self.leaves_in_time(self._arrived_ms[offset], self.world.faults.window_ms, true_ms)


def checks_of(world: World) -> Checks:
    if world.kind == "producer":
        return ProducerChecks(world)
    return Checks(world) if world.faults.clock_set else ClockChecks(world)


# ------------------------------------------------------------------------------------------------------ the tests


def senders(seed: str, faults: Faults, count: int, *, good_clocks: bool = False) -> list[Sender]:
    found = []
    for number in range(count):
        random = Random(f"{seed}/{number}")
        clock = Clock(random) if good_clocks else Clock.drawn(random)
        found.append(Sender(f"sender-{number}", random, clock, faults, gap_ms=random.choice([10, 40, 200])))
    return found


def world(kind: Kind, seed: str, faults: Faults, senders: list[Sender]) -> World:
    return World(kind, Random(f"{seed}/world"), faults, senders)


@kinds
@seeds
def test_order_holds_in_any_weather(kind: Kind, seed: int) -> None:
    name = f"weather/{seed}"
    random = Random(name)
    faults = Faults.drawn(random)
    world(kind, name, faults, senders(name, faults, random.randint(1, 6))).run()


@kinds
@seeds
def test_nothing_is_lost_or_held_up_when_the_leaders_own_clock_is_set(kind: Kind, seed: int) -> None:
    name = f"leader/{seed}"
    random = Random(name)
    faults = Faults.drawn(random)
    faults.crashes, faults.clock_set = 0.02, 0.5
    world(kind, name, faults, senders(name, faults, random.randint(1, 4))).run()


@kinds
@seeds
def test_one_bad_producer_changes_nothing_for_the_others(kind: Kind, seed: int) -> None:
    name = f"rogue/{seed}"
    faults = Faults(window_ms=400, latency_ms_max=180)
    random = Random(name)
    skew_ms = random.choice([-1, 1]) * random.randint(600, 12 * HOUR_MS)
    rogue_faults = Faults(latency_ms_max=1500, lost=0.2)
    clock = Clock(random, skew_ms=skew_ms, jumps=random.choice([0, 0.1]))
    rogue = Sender("rogue", random, clock, rogue_faults, gap_ms=20)
    without = world(kind, name, faults, senders(name, faults, 4, good_clocks=True)).run()
    together = world(kind, name, faults, [*senders(name, faults, 4, good_clocks=True), rogue]).run()
    assert not any(entry.is_late for entry in without.log)
    assert releases(together, but="rogue") == releases(without)


def releases(queue: SortedLog, but: str = "") -> dict[Stamp, tuple[int, int]]:
    """Message → when it came and when it left."""
    found = {}
    for offset, now_ms in queue.released:
        stamp, arrived_ms, _ = queue.log[offset]
        if stamp is not None and stamp.producer != but:
            found[stamp] = (arrived_ms, now_ms)
    return found


@kinds
def test_good_clocks_and_a_calm_network_make_nothing_late(kind: Kind) -> None:
    faults = Faults(window_ms=2000, latency_ms_max=350, crashes=0.02)
    queue = world(kind, "calm", faults, senders("calm", faults, 5, good_clocks=True)).run()
    assert len(queue.log) > 500 and not any(entry.is_late for entry in queue.log)
    if kind == "clock":
        assert queue.order() == sorted(stamp for stamp in queue.order() if stamp is not None)
