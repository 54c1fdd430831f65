"""The work of `pushq consume`: one subscription, from its first line to its last ack."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from gateway.commands.hold import Holder
from gateway.commands.messages import as_line, fields_of
from gateway.commands.output import json_line, tell
from gateway.commands.reader import Reader, Taken, given_back, reader_of_stdout
from gateway.commands.target import Target

if TYPE_CHECKING:
    from push.client import Message, Subscription
    from push.client.model import TransportName

CREDIT_DEFAULT = 100
HOLD_S_MAX = 12 * 3600.0
"""How long the lease of a message is extended whose ack waits for the rest of `--count`."""


class Consumer:
    """Prints messages until it has `count`, or until Ctrl-C or SIGTERM."""

    def __init__(
        self, queue: str, options: Mapping[str, Any], *, count: int | None, credit: int | None, as_json: bool
    ) -> None:
        self._queue = queue
        self._options = options
        self._count = count
        self._credit = _credit(credit, count)
        self._as_json = as_json

    async def run(self, target: Target, transport: TransportName, *, is_auto: bool) -> None:
        stop = _stop_signal()
        credit = 1 if is_auto and self._count is not None else self._credit
        ack = "auto" if is_auto and self._count is None else "manual"
        options: dict[str, Any] = {"credit": credit, "ack": ack, "handler_limit_s": HOLD_S_MAX, **self._options}
        async with target.connect(transport=transport) as pushq:
            async with pushq.subscribe(self._queue, **options) as subscription:
                tell(f'consuming "{self._queue}" over {transport}; Ctrl-C ends')
                if is_auto and self._count is not None:
                    await _until(stop, self._take(subscription, self._count))
                    return
                holder = Holder(count=self._count, credit=self._credit)
                reader = reader_of_stdout(self._credit)
                try:
                    await _until(stop, self._print_to(reader, subscription, holder))
                finally:
                    # Before the subscription closes: acks leave ahead of the word that ends it.
                    if reader is not None:
                        await reader.end(holder.printed)
                    holder.release()
            await holder.settled()

    async def _print_to(self, reader: Reader | None, subscription: Subscription, holder: Holder) -> None:
        """At least once: the ack follows the line, so a message whose line went nowhere comes again."""
        if reader is None:
            await self._print(subscription, holder, holder.printed)
            return
        watching = asyncio.ensure_future(reader.watch(holder.printed))
        printing = asyncio.ensure_future(self._print(subscription, holder, reader.wrote))
        try:
            done, _ = await asyncio.wait([watching, printing], return_when=asyncio.FIRST_COMPLETED)
        finally:
            watching.cancel()
            printing.cancel()
            await asyncio.wait([watching, printing])
        for ended in done:
            ended.result()

    async def _print(self, subscription: Subscription, holder: Holder, wrote: Taken) -> None:
        printed = 0
        while printed != self._count:
            message = await subscription.get()
            if holder.was_printed(message):
                await holder.printed(message)
                continue
            try:
                self._write(message)
            except BrokenPipeError:
                await given_back([message])
                raise
            printed += 1
            await wrote(message)

    async def _take(self, subscription: Subscription, count: int) -> None:
        """At most once, and no more than `count`: the line follows the ack.

        With `auto` the server would go on sending, and what it sends is gone; so messages come one by one, and the
        last one's ack travels with the word that ends the subscription.
        """
        from push.client import LeaseLost

        taken = 0
        while taken < count:
            message = await subscription.get()
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
        fields = fields_of(message)
        line = json_line(fields) if self._as_json else as_line(fields)
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def _credit(wanted: int | None, count: int | None) -> int:
    """With a count a tenth of it, for the acks of the last `credit` messages have to wait for the end."""
    if count is None:
        return wanted or CREDIT_DEFAULT
    return min(wanted or max(1, min(CREDIT_DEFAULT, count // 10)), count)


async def _until(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """To the end of the work, or to the signal."""
    working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        working.cancel()
        await asyncio.wait([working])
    if not working.cancelled():
        working.result()


def _stop_signal() -> asyncio.Event:
    """Set by Ctrl-C and SIGTERM: the ordinary ways to end, so what was printed is acked first."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    return stop
