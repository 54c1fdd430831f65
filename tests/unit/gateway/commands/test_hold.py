"""Acks go out as long as they bring no message that nobody wants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio.lowlevel
import pytest

from gateway.commands.hold import Holder
from push.client import LeaseLost, Unavailable

pytestmark = pytest.mark.anyio


class Printed:
    """A message whose ack is confirmed, or not."""

    id = "m-1"
    partition = 0
    receipt: str | None = "r"

    def __init__(self, acked: Callable[[], None] = lambda: None, error: Exception | None = None, seq: int = 0) -> None:
        self.seq = seq
        self._acked = acked
        self._error = error

    async def ack(self) -> None:
        await anyio.lowlevel.checkpoint()
        if self._error is not None:
            raise self._error
        self._acked()


printed: Any = Printed
"""In place of the SDK's message."""


async def turns() -> None:
    """As many turns of the loop as an ack takes, and what it lets go."""
    for _ in range(10):
        await anyio.lowlevel.checkpoint()


class Queue:
    """Counts what a server with this credit would have sent once the acks came back."""

    def __init__(self, credit: int) -> None:
        self.sent = credit
        self.acked = 0

    def message(self) -> Any:
        return Printed(self._ack)

    def _ack(self) -> None:
        self.acked += 1
        self.sent += 1


@pytest.mark.parametrize(("count", "credit"), [(1, 1), (10, 10), (10, 3), (100, 1)])
async def test_server_never_sends_more_than_is_wanted_and_everything_is_acked(count: int, credit: int) -> None:
    queue, holder = Queue(credit), Holder(count=count, credit=credit)
    for _ in range(count):
        await holder.printed(queue.message())
        await turns()
        assert queue.sent <= count
    assert queue.acked == count - credit
    await holder.release()
    await holder.settled()
    assert queue.acked == count


async def test_without_a_count_nothing_is_held() -> None:
    queue, holder = Queue(2), Holder(count=None, credit=2)
    for _ in range(5):
        await holder.printed(queue.message())
    await holder.settled()
    assert queue.acked == 5


async def test_lost_lease_is_told_and_is_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    holder = Holder(count=None, credit=1)
    await holder.printed(printed(error=LeaseLost("ended")))
    await holder.settled()
    assert "m-1 was printed, but its lease had expired" in capsys.readouterr().err


@pytest.mark.parametrize("is_told_before", [True, False])
async def test_message_whose_ack_came_too_late_is_acked_when_it_comes_again(is_told_before: bool) -> None:
    """Else it would hold the only credit, and the next message would wait for its lease to end."""
    queue, holder = Queue(1), Holder(count=2, credit=1)
    await holder.printed(printed(error=LeaseLost("ended")))
    if is_told_before:
        await turns()
    await holder.printed(queue.message())
    await turns()
    assert (queue.acked, queue.sent) == (1, 2)
    await holder.printed(queue.message())
    await turns()
    assert queue.acked == 1
    await holder.release()
    await holder.settled()
    assert queue.acked == 2


async def test_ack_that_fails_fails_the_command() -> None:
    holder = Holder(count=None, credit=1)
    await holder.printed(printed(error=Unavailable("gone")))
    with pytest.raises(Unavailable):
        await holder.settled()


async def test_message_that_comes_again_before_its_ack_counted_is_known() -> None:
    holder = Holder(count=2, credit=2)
    await holder.printed(printed(seq=7))
    assert holder.was_printed(printed(seq=7))
    assert not holder.was_printed(printed(seq=8))
    await holder.release()
    await holder.settled()
    assert not holder.was_printed(printed(seq=7))


async def test_message_without_a_receipt_needs_no_ack() -> None:
    message = printed(error=Unavailable("nobody asks"))
    message.receipt = None
    holder = Holder(count=None, credit=1)
    await holder.printed(message)
    await holder.settled()
