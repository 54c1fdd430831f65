"""A subscription as the user sees it: an `async for` over the core's inbox."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Self

from push.client.core import Delivery, SubscriptionState
from push.client.core.settling import How
from push.client.errors import SessionClosed
from push.client.link import Link
from push.client.message import Message
from push.client.producer import Producer


class _Left(SessionClosed):
    """The user closed the subscription: a loop over it ends without an error."""


class Subscription:
    """Messages of one queue, across reconnects.

    `async for message in subscription` is all that is needed; leaving the loop unsubscribes, and messages not settled
    by then go back to the queue, without an attempt if the loop was not given them yet. `async with subscription:`
    waits until the server has accepted it, so that nothing published afterwards is missed. Several tasks may call `get`
    at once.
    """

    def __init__(self, state: SubscriptionState, producer: Producer) -> None:
        self._state = state
        self._producer = producer
        self._link = link = producer.link
        self._waiters: set[asyncio.Future[None]] = set()
        link.readers[state] = self.stir

    async def get(self) -> Message:
        """The next message. Raises the server's error if that ended the subscription."""
        self._link.check_loop()
        while True:
            delivery = self._state.take(self._link.now())
            if delivery is not None:
                if self._state.needs_step:
                    self._link.kick()
                return Message(delivery, self._producer)
            self._raise_if_over()
            await self.change()

    async def subscribed(self) -> None:
        """Wait until the server has accepted the subscription; raises its error if it does not."""
        while not self._state.was_subscribed:
            self._raise_if_over()
            await self.change()

    async def close(self) -> None:
        """Unsubscribe. Acks of tasks that were created before this call go first: their messages must not go back."""
        try:
            await asyncio.sleep(0)
        finally:
            self.leave()

    async def __aenter__(self) -> Self:
        await self.subscribed()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def __aiter__(self) -> AsyncIterator[Message]:
        try:
            while True:
                yield await self.get()
        except _Left:
            return
        finally:
            await self.close()

    # For a runner, which reads the inbox before it begins with some of the messages

    @property
    def state(self) -> SubscriptionState:
        """The state of the subscription; waiting messages are in its inbox."""
        return self._state

    @property
    def link(self) -> Link:
        """The connection of the subscription."""
        return self._link

    def begin(self, delivery: Delivery) -> Message:
        """Take this message out of the inbox."""
        self._state.begin(delivery, self._link.now())
        if self._state.needs_step:
            self._link.kick()
        return Message(delivery, self._producer)

    def give_back(self, deliveries: Sequence[Delivery], how: How) -> None:
        """Give back messages that wait in the inbox."""
        if deliveries:
            self._link.core.give_back(how, deliveries, self._link.now())
            self._link.kick()

    def leave(self) -> None:
        """As `close`, for callers that cannot await."""
        self._link.core.unsubscribe(self._state)
        self._link.readers.pop(self._state, None)
        self._link.kick()
        self.stir()

    async def change(self) -> None:
        """Wait until something happens to the subscription, or `stir` is called."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)

    def stir(self) -> None:
        """Wake all that wait in `change`."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _raise_if_over(self) -> None:
        if self._state.ended is not None:
            raise self._state.ended
        if self._state.is_closed:
            raise _Left(f'queue "{self._state.queue}": the subscription was closed')
