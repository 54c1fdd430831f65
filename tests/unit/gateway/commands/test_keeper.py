"""What `consume --no-ack` has shown goes back at the end, and what did not is known."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.commands.hold import Keeper
from push.client import LeaseLost

pytestmark = pytest.mark.anyio


class Shown:
    partition = 0

    def __init__(self, seq: int, error: Exception | None = None) -> None:
        self.seq = seq
        self.delays: list[float | None] = []
        self._error = error

    async def release(self, *, delay: float | None = None) -> None:
        self.delays.append(delay)
        if self._error is not None:
            raise self._error


async def test_all_go_back_once_and_those_that_did_not_are_counted() -> None:
    keeper = Keeper(1.0)
    shown: list[Any] = [Shown(1), Shown(2, LeaseLost("ended")), Shown(3)]
    for message in shown:
        assert not keeper.was_printed(message)
        await keeper.printed(message)
    assert all(message.delays == [] for message in shown), "before the end it would come again"
    await keeper.release()
    assert [message.delays for message in shown] == [[1.0], [1.0], [1.0]]
    assert (len(keeper), keeper.given_back) == (3, 2)


async def test_a_message_that_comes_again_is_not_shown_again_and_its_newer_lease_goes_back() -> None:
    keeper = Keeper(None)
    first: Any = Shown(1)
    again: Any = Shown(1)
    assert not keeper.was_printed(first)
    await keeper.printed(first)
    assert keeper.was_printed(again)
    await keeper.printed(again)
    await keeper.release()
    assert (first.delays, again.delays, keeper.given_back) == ([], [None], 1)
