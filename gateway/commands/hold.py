"""Which printed messages may be acked now: an ack lets the server send one more, and `--count` bounds what is sent."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from gateway.commands.output import tell

if TYPE_CHECKING:
    from push.client import Message

ACKS_UNCONFIRMED_MAX = 5_000


class Holder:
    """Acks at once while more messages are wanted than the server may send; the last `credit` acks wait for the end.

    Acked any earlier, they would bring messages nobody prints, and those would go back with an attempt counted.
    """

    def __init__(self, *, count: int | None, credit: int) -> None:
        self._free = None if count is None else count - credit
        self._held: deque[Message] = deque()
        self._acks: set[asyncio.Task[None]] = set()
        self._failures: list[BaseException] = []

    async def printed(self, message: Message) -> None:
        """The message's line was written."""
        if self._free is None or self._free > 0:
            self._free = None if self._free is None else self._free - 1
            self._ack(message)
        else:
            self._held.append(message)
        if len(self._acks) >= ACKS_UNCONFIRMED_MAX:
            await asyncio.wait(self._acks, return_when=asyncio.FIRST_COMPLETED)

    def release(self) -> None:
        """No more messages are wanted: ack what waits."""
        while self._held:
            self._ack(self._held.popleft())

    async def settled(self) -> None:
        """Wait until every ack is confirmed; raises what made one fail."""
        if self._acks:
            await asyncio.wait(self._acks)
        if self._failures:
            raise self._failures[0]

    def _ack(self, message: Message) -> None:
        task = asyncio.ensure_future(message.ack())
        self._acks.add(task)
        task.add_done_callback(lambda done: self._done(done, message))

    def _done(self, task: asyncio.Task[None], message: Message) -> None:
        from push.client import LeaseLost

        self._acks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, LeaseLost):
            tell(f"{message.id} was printed, but its lease had ended: it will come again")
        else:
            self._failures.append(error)
