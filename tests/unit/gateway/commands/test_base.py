"""What SIGINT and SIGTERM do to a command, with real signals to this process."""

from __future__ import annotations

import asyncio
import signal

import pytest

from gateway.commands.base import run, stop_signal

SIGNALS = (signal.SIGINT, signal.SIGTERM)
PATIENCE_S = 20.0


@pytest.mark.parametrize("number", SIGNALS)
def test_command_that_asks_for_the_signal_is_told_and_goes_on(number: signal.Signals) -> None:
    async def work() -> str:
        stop = stop_signal()
        assert not stop.is_set()
        signal.raise_signal(number)
        async with asyncio.timeout(PATIENCE_S):
            await stop.wait()
        return "to its end"

    before = [signal.getsignal(each) for each in SIGNALS]
    assert run(work()) == "to its end"
    assert [signal.getsignal(each) for each in SIGNALS] == before


def test_command_that_does_not_is_cancelled() -> None:
    cleaned: list[bool] = []

    async def work() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
            await asyncio.sleep(PATIENCE_S)
        finally:
            cleaned.append(True)

    with pytest.raises(SystemExit) as ended:
        run(work())
    assert (ended.value.code, cleaned) == (128 + signal.SIGTERM, [True])
