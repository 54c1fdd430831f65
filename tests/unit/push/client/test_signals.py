"""What SIGINT and SIGTERM do while handlers run, with real signals to this process."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from typing import Any

import anyio.to_thread
import pytest

from push.client.signals import SIGNALS, stopped_by_signals
from tests.unit.push.client.handlers import Work, delivering, nacks
from tests.unit.push.client.played import eventually, session

pytestmark = pytest.mark.anyio

told: list[str] = []


def before(number: int, frame: Any) -> None:
    told.append(signal.Signals(number).name)


@pytest.fixture(autouse=True)
def handlers_of_the_program() -> Iterator[None]:
    """What the program had before, and what must be there afterwards."""
    told.clear()
    kept = {number: signal.signal(number, before) for number in SIGNALS}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


class Stops:
    def __init__(self) -> None:
        self.asked: list[bool] = []

    def __call__(self, *, at_once: bool = False) -> None:
        self.asked.append(at_once)


def restored() -> bool:
    return all(signal.getsignal(number) is before for number in SIGNALS)


@pytest.mark.parametrize("number", SIGNALS)
async def test_the_first_asks_the_second_does_not_the_third_is_the_programs(number: signal.Signals) -> None:
    stop = Stops()
    with stopped_by_signals(stop):
        signal.raise_signal(number)
        await eventually(lambda: stop.asked == [False])
        assert not restored()
        signal.raise_signal(number)
        assert restored()  # before the event loop has its turn: it may be blocked
        await eventually(lambda: stop.asked == [False, True])
        signal.raise_signal(number)
        assert told == [number.name]
    assert restored()


async def test_a_signal_after_the_block_is_the_programs() -> None:
    stop = Stops()
    with stopped_by_signals(stop):
        pass
    signal.raise_signal(signal.SIGTERM)
    assert (told, stop.asked) == (["SIGTERM"], [])


async def test_several_are_stopped_together() -> None:
    first, second = Stops(), Stops()
    with stopped_by_signals(first):
        with stopped_by_signals(second):
            signal.raise_signal(signal.SIGTERM)
            await eventually(lambda: first.asked == second.asked == [False])
        assert not restored()
        signal.raise_signal(signal.SIGINT)
        await eventually(lambda: first.asked == [False, True])
    assert second.asked == [False] and restored()


async def test_one_that_comes_late_is_stopped_like_the_others() -> None:
    early, late = Stops(), Stops()
    with stopped_by_signals(early):
        signal.raise_signal(signal.SIGTERM)
        with stopped_by_signals(late):
            await eventually(lambda: late.asked == [False])


async def test_a_signal_that_is_ignored_stays_so() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with stopped_by_signals(Stops()):
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


async def test_a_signal_that_comes_with_the_beginning_or_the_end_is_somebodys(monkeypatch: pytest.MonkeyPatch) -> None:
    stop, real, coming = Stops(), signal.signal, [signal.SIGINT, signal.SIGTERM]

    def interrupted(number: int, handler: Any) -> Any:
        was = real(number, handler)
        if number == signal.SIGINT and coming:  # SIGTERM is still as it was
            signal.raise_signal(coming.pop(0))
        return was

    with monkeypatch.context() as patched:
        patched.setattr(signal, "signal", interrupted)
        with stopped_by_signals(stop):
            await eventually(lambda: stop.asked == [False])
        await eventually(lambda: stop.asked == [False, True])
    assert restored()


async def test_outside_the_main_thread_signals_are_left_alone() -> None:
    async def elsewhere() -> bool:
        with stopped_by_signals(Stops()):
            return restored()

    assert await anyio.to_thread.run_sync(lambda: asyncio.run(elsewhere()))


async def test_run_drains_at_a_signal_and_returns() -> None:
    server, work = delivering("a", "b"), Work()
    async with session(server) as pushq:
        running = asyncio.create_task(pushq.run("q", work, concurrency=1, prefetch=1))
        await eventually(lambda: work.begun == ["a"])
        signal.raise_signal(signal.SIGTERM)
        await eventually(lambda: nacks(server) == [(["r-b"], None, False)])
        work.finish("a")
        await running
    assert server.acked == ["r-a"] and restored()
