"""`pushq consume`: has messages pushed to a shell, one line each; a message is acked when its line was written."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import TYPE_CHECKING, Any, cast

import click

from gateway.commands.base import command, json_option, run
from gateway.commands.hold import Holder
from gateway.commands.messages import as_line, fields_of
from gateway.commands.output import json_line, tell
from gateway.commands.target import OPEN_TIMEOUT_S, Target, target_options

if TYPE_CHECKING:
    from push.client import Limits, Message, Subscription
    from push.client.model import AckMode, From, TransportName

CREDIT_DEFAULT = 100
CREDIT_MAX = 10_000
HOLD_S_MAX = 12 * 3600.0
"""How long a lease is extended for a message whose ack waits for the rest of `--count`."""
NEVER_RETURNED = float("inf")


@command("consume")
@click.argument("queue")
@click.option(
    "--transport", type=click.Choice(["ws", "sse", "poll"]), default="ws", show_default=True, help="How it is pushed."
)
@click.option("--count", type=click.IntRange(min=1), help="End after so many messages; no others are touched.")
@click.option(
    "--ack",
    type=click.Choice(["manual", "auto"]),
    default="manual",
    show_default=True,
    help="manual: acked once written to stdout. auto: gone as soon as it is sent, at most once.",
)
@click.option("--credit", type=click.IntRange(1, CREDIT_MAX), help=f"Held at a time.  [default: {CREDIT_DEFAULT}]")
@click.option("--from", "start", metavar="WHERE", help="Of a stream: earliest, latest, seq:N, time:T or cursor:C.")
@click.option("--visibility-timeout-ms", type=int, help="In place of the queue's.")
@click.option("--group", hidden=True)
@target_options
@json_option
def consume(
    queue: str,
    transport: str,
    count: int | None,
    ack: str,
    credit: int | None,
    start: str | None,
    visibility_timeout_ms: int | None,
    group: str | None,
    target: Target,
    as_json: bool,
) -> None:
    """Print messages of QUEUE as they come, until --count or Ctrl-C.

    Each line is seq, id, attempt and body; --json prints the whole message. What is not printed goes back.
    """
    if group is not None:
        raise click.UsageError("--group: consumer groups do not exist in this version")
    if ack == "auto" and count is not None and count > CREDIT_MAX:
        raise click.UsageError(f"--ack auto takes a --count of at most {CREDIT_MAX}: what is sent is gone")
    wanted: dict[str, Any] = {"ack": cast("AckMode", ack), "visibility_timeout_ms": visibility_timeout_ms}
    wanted |= {"from_": parse_start(start), "handler_limit_s": HOLD_S_MAX}
    run(_Consumer(queue, wanted, count, credit, as_json).run(target, cast("TransportName", transport)))


def parse_start(text: str | None) -> From | None:
    """`earliest`, `latest`, `seq:42`, `time:…`, `cursor:…` as the API says them."""
    if text is None or text in ("earliest", "latest"):
        return cast("From | None", text)
    name, colon, value = text.partition(":")
    if name not in ("seq", "time", "cursor") or not colon or (name == "seq" and not value.isdecimal()):
        raise click.BadParameter(f"{text!r} is not earliest, latest, seq:N, time:T or cursor:C", param_hint="--from")
    return {name: int(value) if name == "seq" else value}


class _Consumer:
    """One subscription, from its first line to its last ack."""

    def __init__(
        self, queue: str, wanted: dict[str, Any], count: int | None, credit: int | None, as_json: bool
    ) -> None:
        self._queue = queue
        self._wanted = wanted
        self._count = count
        self._is_auto = wanted["ack"] == "auto"
        if self._is_auto and count is not None:
            self._credit = count
        else:
            self._credit = min(credit or CREDIT_DEFAULT, count or CREDIT_MAX)
        self._as_json = as_json
        self._holder = Holder(count=count, credit=self._credit)

    async def run(self, target: Target, transport: TransportName) -> None:
        stop = _stop_signal()
        async with target.connect(transport=transport, limits=self._limits()) as pushq:
            async with pushq.subscribe(self._queue, credit=self._credit, **self._wanted) as subscription:
                tell(f'consuming "{self._queue}" over {transport}; Ctrl-C ends')
                try:
                    await self._until(stop, subscription)
                finally:
                    # Before the subscription closes: acks leave ahead of the word that ends it.
                    self._holder.release()
            await self._holder.settled()

    async def _until(self, stop: asyncio.Event, subscription: Subscription) -> None:
        printing = asyncio.ensure_future(self._print(subscription))
        stopping = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait([printing, stopping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            printing.cancel()
            await asyncio.wait([printing])
        if not printing.cancelled():
            printing.result()

    async def _print(self, subscription: Subscription) -> None:
        printed = 0
        while printed != self._count:
            message = await subscription.get()
            self._write(message)
            printed += 1
            # After the line was written: a message whose line went nowhere comes again.
            await self._holder.printed(message)

    def _write(self, message: Message) -> None:
        fields = fields_of(message)
        line = json_line(fields) if self._as_json else as_line(fields)
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    def _limits(self) -> Limits:
        from push.client import Limits

        if self._is_auto and self._count is not None:
            # With the credit given back, more than `count` would be sent, and what is sent is gone.
            return Limits(open_timeout_s=OPEN_TIMEOUT_S, credit_return_fraction=NEVER_RETURNED)
        return Limits(open_timeout_s=OPEN_TIMEOUT_S)


def _stop_signal() -> asyncio.Event:
    """Set by Ctrl-C and SIGTERM: the ordinary ways to end, so what was printed is acked first."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    return stop
