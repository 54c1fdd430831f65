"""Who replays goes as fast as the others let it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from push.delivery.replay_pacer import Pacer
from push.limits import (
    CATCH_UP_CALM_SECONDS,
    CATCH_UP_CHUNKS_PER_TURN,
    CATCH_UP_PAUSE_SECONDS,
    CATCH_UP_SLICE_SECONDS,
    CATCH_UP_WORK_SECONDS,
)


class Loop:
    """A loop whose time passes when the test says so. `others` is what everybody else takes of a turn."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.others = 0.0
        self.slept = 0.0
        self._soon: deque[Callable[[], None]] = deque()
        self._later: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_soon(self, call: Callable[[], None]) -> None:
        self._soon.append(call)

    def call_later(self, seconds: float, call: Callable[[], None]) -> None:
        self._later.append((self.now + seconds, call))

    def turn(self) -> bool:
        """False when nothing is left to do."""
        if not self._soon and self._later:
            at, call = self._later.pop(0)
            self.slept += at - self.now
            self.now = max(self.now, at)
            self._soon.append(call)
        if not self._soon:
            return False
        calls, self._soon = self._soon, deque()
        self.now += self.others
        for call in calls:
            call()
        return True


class Reader:
    def __init__(self, loop: Loop, chunks: int, seconds: float = 0.0001):
        self.loop = loop
        self.left = chunks
        self.seconds = seconds
        self.turns: list[float] = []

    def step(self) -> bool:
        self.loop.now += self.seconds
        self.left -= 1
        self.turns.append(self.loop.now)
        return self.left > 0


@pytest.fixture
def loop() -> Loop:
    return Loop()


def pacer_of(loop: Any) -> Pacer:
    return Pacer(loop)


def test_all_is_read_and_then_nothing_is_scheduled(loop: Loop) -> None:
    reader = Reader(loop, 100)
    pacer_of(loop).add(reader.step)
    while loop.turn():
        pass
    assert reader.left == 0 and loop.slept == 0


def test_a_slice_ends_when_its_time_is_over_however_many_replay(loop: Loop) -> None:
    pacer = pacer_of(loop)
    readers = [Reader(loop, 50) for _ in range(20)]
    for reader in readers:
        pacer.add(reader.step)
    while True:
        before = loop.now
        if not loop.turn():
            break
        assert loop.now - before <= CATCH_UP_SLICE_SECONDS + readers[0].seconds + 1e-9
    assert all(reader.left == 0 for reader in readers)


def test_a_slice_has_so_many_chunks_at_most(loop: Loop) -> None:
    reader = Reader(loop, 1000, seconds=0.0)
    pacer_of(loop).add(reader.step)
    before = reader.left
    loop.turn()
    assert before - reader.left <= CATCH_UP_CHUNKS_PER_TURN


def test_one_reader_that_fails_stops_none_of_the_others(loop: Loop) -> None:
    """They read for as long as the process runs, and so do those who come later."""
    pacer, first, later = pacer_of(loop), Reader(loop, 30), Reader(loop, 30)

    def fail() -> bool:
        raise ValueError("a fault of ours")

    pacer.add(fail)
    pacer.add(first.step)
    with suppress(ValueError):
        loop.turn()
    pacer.add(later.step)
    while loop.turn():
        pass
    assert (first.left, later.left) == (0, 0)


def test_those_who_replay_take_turns(loop: Loop) -> None:
    pacer = pacer_of(loop)
    first, second = Reader(loop, 30), Reader(loop, 30)
    pacer.add(first.step)
    pacer.add(second.step)
    for _ in range(4):
        loop.turn()
    assert abs(first.left - second.left) <= 1 < first.left


def test_while_others_are_at_work_there_is_a_pause_between_slices(loop: Loop) -> None:
    loop.others = 2 * CATCH_UP_WORK_SECONDS
    reader = Reader(loop, 1000)
    pacer_of(loop).add(reader.step)
    while loop.turn():
        pass
    slices = 1000 * reader.seconds / CATCH_UP_SLICE_SECONDS
    assert reader.left == 0 and loop.slept >= slices * CATCH_UP_PAUSE_SECONDS * 0.5


def test_the_pauses_end_when_the_others_have_been_calm_for_a_while(loop: Loop) -> None:
    loop.others = 2 * CATCH_UP_WORK_SECONDS
    reader = Reader(loop, 100_000)
    pacer_of(loop).add(reader.step)
    for _ in range(10):
        loop.turn()
    loop.others = 0.0
    calm_from = loop.now
    while loop.now < calm_from + 1.5 * CATCH_UP_CALM_SECONDS:
        loop.turn()
    before = loop.slept
    for _ in range(50):
        loop.turn()
    assert loop.slept == before


def test_a_reader_may_come_back_after_a_rest(loop: Loop) -> None:
    pacer = pacer_of(loop)
    for _ in range(2):
        reader = Reader(loop, 3)
        pacer.add(reader.step)
        while loop.turn():
            pass
        assert reader.left == 0


def test_while_the_process_has_too_much_to_do_nobody_replays(loop: Loop) -> None:
    held = True
    reader = Reader(loop, 3)
    pacer = Pacer(loop, is_held=lambda: held)  # type: ignore[arg-type]
    pacer.add(reader.step)
    for _ in range(50):
        loop.turn()
    assert reader.left == 3
    held = False
    while loop.turn():
        pass
    assert reader.left == 0
