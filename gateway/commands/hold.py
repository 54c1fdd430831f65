"""Decides when `consume` acks printed messages, and recognises redeliveries until the ack is confirmed."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from gateway.commands.output import tell

if TYPE_CHECKING:
    from push.client import Message

UNCONFIRMED_MAX = 5_000
"""Most acks sent and not yet confirmed; beyond this, printing waits."""
REMEMBERED_MAX = 20_000
Place = tuple[int, int]
"""Partition and seq, by which a redelivered message is recognised."""


class Holder:
    """Acks at once while more messages are wanted than the server may send; the last `credit` acks wait for the end.

    If they were sent earlier, the server would push messages that are not printed, and those would go back with an
    attempt counted.
    """

    def __init__(self, *, count: int | None, credit: int) -> None:
        self._free = None if count is None else count - credit
        self._held: deque[Message] = deque()
        self._acks: set[asyncio.Task[None]] = set()
        self._unconfirmed: dict[Place, None] = {}
        self._failures: list[Exception] = []

    def was_printed(self, message: Message) -> bool:
        """Whether the message was printed before and its lease ended before its ack: it needs an ack, but no second
        line."""
        return _place(message) in self._unconfirmed

    async def printed(self, message: Message) -> None:
        """Acks a message whose line was written, now or at an earlier delivery, or holds the ack for the end."""
        if message.receipt is None:
            return
        self._remember(message)
        if self._free is None or self._free > 0:
            self._free = None if self._free is None else self._free - 1
            self._ack(message)
        else:
            self._held.append(message)
        if len(self._acks) >= UNCONFIRMED_MAX:
            await asyncio.wait(self._acks, return_when=asyncio.FIRST_COMPLETED)

    async def release(self) -> None:
        """Sends the held acks: no more messages are wanted."""
        while self._held:
            self._ack(self._held.popleft())

    async def settled(self) -> None:
        """Waits until every ack is confirmed; raises the error of the first that failed."""
        if self._acks:
            await asyncio.wait(self._acks)
        if self._failures:
            raise self._failures[0]

    def _remember(self, message: Message) -> None:
        self._unconfirmed[_place(message)] = None
        if len(self._unconfirmed) > REMEMBERED_MAX:
            del self._unconfirmed[next(iter(self._unconfirmed))]

    def _ack(self, message: Message) -> None:
        task = asyncio.ensure_future(message.ack())
        self._acks.add(task)
        task.add_done_callback(lambda done: self._done(done, message))

    def _done(self, task: asyncio.Task[None], message: Message) -> None:
        from push.client import LeaseLost

        self._acks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is None:
            self._unconfirmed.pop(_place(message), None)
        elif isinstance(error, LeaseLost):
            tell(f"{message.id} was printed, but its lease had expired: it will be redelivered")
            self._go_on()
        elif isinstance(error, Exception):
            self._failures.append(error)

    def _go_on(self) -> None:
        """Called when an ack failed: sends another one in its place, or the message could wait for its own credit."""
        if self._held:
            self._ack(self._held.popleft())
        elif self._free is not None:
            self._free += 1


class Keeper:
    """Replaces `Holder` where nothing is acked: keeps each message until the end, then nacks it without counting an
    attempt.

    A message given back earlier would be redelivered before those behind it.
    """

    def __init__(self, back_s: float | None) -> None:
        self._back_s = back_s
        self._seen: set[Place] = set()
        self._kept: dict[Place, Message] = {}
        self.given_back = 0
        """How many messages the server confirmed it has back, after `release`."""

    def __len__(self) -> int:
        return len(self._kept)

    def was_printed(self, message: Message) -> bool:
        """Whether it is a redelivery: its lease had ended, as after a server restart. It is kept, and not printed
        twice."""
        place = _place(message)
        is_seen = place in self._seen
        self._seen.add(place)
        return is_seen

    async def printed(self, message: Message) -> None:
        """Keeps a message whose line was written, now or at an earlier delivery."""
        self._kept[_place(message)] = message

    async def release(self) -> None:
        """Gives back all kept messages: no more are wanted."""
        from gateway.commands.reader import given_back

        self.given_back = await given_back(self._kept.values(), self._back_s)

    async def settled(self) -> None:
        """Returns at once: nothing was acked."""


def _place(message: Message) -> Place:
    return message.partition, message.seq
