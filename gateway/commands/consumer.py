"""The work of `pushq consume`: one subscription, from its first line to its last ack."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import click

from gateway.commands.asking import ask
from gateway.commands.base import stop_signal
from gateway.commands.exits import Failure
from gateway.commands.formats import Show
from gateway.commands.hold import Holder, Keeper
from gateway.commands.output import tell
from gateway.commands.reader import SSE_BACK_S, Reader, Taken, given_back, reader_of_stdout
from gateway.commands.target import Target
from web_console.wording import counted

if TYPE_CHECKING:
    from push.client import Message, Subscription
    from push.client.model import TransportName

CREDIT_DEFAULT = 100
KEPT_DEFAULT = 1_000
"""How many messages `--no-ack` shows and keeps, if neither `--count` nor `--credit` is given."""
HOLD_S_MAX = 12 * 3600.0
"""How long the lease of a message may be extended while its ack waits for the rest of `--count`."""


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """How much to consume, whether to ack, and how to print."""

    count: int | None
    credit: int | None
    ack: Literal["manual", "auto", "none"]
    """none: messages are given back, without counting an attempt."""
    until_empty: bool
    show: Show
    end: bytes = b"\n"


class Consumer:
    """Prints messages until it has `count`, until the queue is empty if that is wanted, or until Ctrl-C or SIGTERM."""

    def __init__(self, queue: str, options: Mapping[str, Any], wishes: Wishes) -> None:
        self._queue = queue
        self._options = options
        self._wishes = wishes
        self._is_kept = wishes.ack == "none"
        self._credit = (wishes.credit or wishes.count or KEPT_DEFAULT) if self._is_kept else _credit(wishes)
        self._count = self._credit if self._is_kept and wishes.count is None else wishes.count
        from gateway.commands.emptiness import Emptiness  # imports the client, which --help need not

        self._back_s: float | None = None
        self._empty = Emptiness(queue, options.get("group"))

    async def run(self, target: Target, transport: TransportName) -> None:
        if sys.stdout is None:  # so Python represents a closed stdout
            raise Failure("stdout is closed: messages cannot be printed")
        stop = stop_signal()
        self._back_s = SSE_BACK_S if transport == "sse" else None
        if (self._wishes.until_empty or self._is_kept) and not await _unless(stop, self._check(target)):
            return
        takes_first = self._wishes.ack == "auto" and self._count is not None
        credit = 1 if takes_first else self._credit
        ack = "auto" if self._wishes.ack == "auto" and self._count is None else "manual"
        options: dict[str, Any] = {"credit": credit, "ack": ack, "handler_limit_s": HOLD_S_MAX, **self._options}
        async with AsyncExitStack() as stack:
            pushq = target.connect(transport=transport, on_event=self._empty.heard)
            stack.push_async_exit(pushq)
            if not await _unless(stop, pushq.open()):
                return
            subscription = pushq.subscribe(self._queue, **options)
            if not await _unless(stop, subscription.subscribed()):
                return
            async with subscription:
                tell(f'consuming "{self._queue}" over {transport}; press Ctrl-C to stop')
                if takes_first:
                    assert self._count is not None
                    await self._to_the_end(self._take(subscription, self._count), stop, target)
                    return
                holder = Keeper(self._back_s) if self._is_kept else Holder(count=self._count, credit=self._credit)
                reader = reader_of_stdout(self._credit, self._back_s)
                try:
                    await self._to_the_end(self._print_to(reader, subscription, holder), stop, target)
                finally:
                    # Before the subscription closes: acks must reach the server ahead of the unsubscribe.
                    if reader is not None:
                        await reader.end(holder.printed)
                    await holder.release()
            await holder.settled()
        if isinstance(holder, Keeper):
            self._tell_kept(len(holder), holder.given_back)

    async def _check(self, target: Target) -> None:
        """Checks, before the first message, that the key may read the stats, and that the queue supports the
        options."""
        config = (await ask(target, lambda admin: admin.get_queue(self._queue)))["config"]
        is_stream = config["kind"] == "stream"
        if self._is_kept and is_stream:
            raise click.UsageError(
                f'"{self._queue}" is a stream, which keeps messages after they are read: remove --no-ack'
            )
        if self._is_kept and config["delivery"] == "at_most_once":
            raise click.UsageError(
                f'"{self._queue}" delivers at most once, so --no-ack could return nothing: use '
                f"{target.command(f'queue peek {self._queue}')}"
            )
        if is_stream and self._options.get("group") is None:
            raise click.UsageError(
                f'"{self._queue}" is a stream and never becomes empty: --until-empty needs --group, or use --count'
            )

    def _tell_kept(self, kept: int, back: int) -> None:
        """Reports that the shown messages are back; raises `Failure` if some are not, or there may be more."""
        if back < kept:
            raise Failure(
                f"{counted(kept, 'message was', 'messages were')} shown; the server confirmed the return of {back}",
                lines=["the others are redelivered when their leases expire, and count as attempts"],
            )
        if kept == self._count and self._wishes.count is None:
            raise Failure(
                f"{counted(kept, 'message was', 'messages were')} shown and returned; there may be more",
                lines=["--no-ack holds the messages it has shown until it exits: raise the number with --credit"],
            )
        shown = counted(kept, "message was shown and is", "messages were shown and are")
        tell(f'{shown} back in "{self._queue}"; no attempt was counted')

    async def _to_the_end(self, work: Coroutine[Any, Any, None], stop: asyncio.Event, target: Target) -> None:
        """Runs until the work is done, a signal comes, or the queue is empty."""
        endings: list[asyncio.Future[Any]] = [asyncio.ensure_future(stop.wait())]
        if self._wishes.until_empty:
            endings.append(asyncio.ensure_future(self._empty.reached(target)))
        await _first([asyncio.ensure_future(work), *endings])

    async def _print_to(self, reader: Reader | None, subscription: Subscription, holder: Holder | Keeper) -> None:
        """At least once: the ack follows the line, so a message whose line was lost is redelivered."""
        if reader is None:
            await self._print(subscription, holder, holder.printed)
            return
        watching = asyncio.ensure_future(reader.watch(holder.printed))
        printing = asyncio.ensure_future(self._print(subscription, holder, reader.wrote))
        await _first([watching, printing])

    async def _print(self, subscription: Subscription, holder: Holder | Keeper, wrote: Taken) -> None:
        printed = 0
        while printed != self._count:
            message = await self._empty.get(subscription)
            if holder.was_printed(message):
                await holder.printed(message)
                continue
            try:
                self._write(message)
            except BrokenPipeError:
                await given_back([message], self._back_s)
                raise
            printed += 1
            await wrote(message)

    async def _take(self, subscription: Subscription, count: int) -> None:
        """At most once, and no more than `count` messages: the line follows the ack.

        With `auto` the server would go on sending messages, which are then gone; so they come one by one, and the last
        ack travels with the unsubscribe.
        """
        from push.client import LeaseLost

        taken = 0
        while taken < count:
            message = await self._empty.get(subscription)
            acking = asyncio.ensure_future(message.ack())
            if taken + 1 == count:
                await subscription.close()
            try:
                await acking
            except LeaseLost:
                if taken + 1 == count:
                    raise
                continue
            self._write(message)
            taken += 1

    def _write(self, message: Message) -> None:
        sys.stdout.buffer.write(self._wishes.show(message) + self._wishes.end)
        sys.stdout.buffer.flush()


def _credit(wishes: Wishes) -> int:
    """The credit. With a count a tenth of it, as the acks of the last `credit` messages have to wait for the end."""
    wanted, count = wishes.credit, wishes.count
    if count is None:
        return wanted or CREDIT_DEFAULT
    return min(wanted or max(1, min(CREDIT_DEFAULT, count // 10)), count)


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Runs work that may be abandoned. Returns False if the signal came first: a silent server is not waited for."""
    await _first([asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())])
    return not stop.is_set()


async def _first(works: list[asyncio.Future[Any]]) -> None:
    """Waits until one of them is over, cancels the others, and raises the error that ended it."""
    try:
        await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for work in works:
            work.cancel()
        await asyncio.wait(works)
    for work in works:
        if not work.cancelled():
            work.result()
