"""`pushq consume`: has messages pushed to a shell, one line each; a message is acked when its line was written."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, cast

import click

from gateway.commands.base import command, json_option, run
from gateway.commands.consumer import Consumer
from gateway.commands.moments import DURATION
from gateway.commands.target import Target, target_options

if TYPE_CHECKING:
    from push.client.model import From, TransportName

CREDIT_MAX = 10_000


class Transport(click.Choice[str]):
    """One of three; their longer names, which the JavaScript client once had, are taken as well."""

    EARLIER = MappingProxyType({"websocket": "ws", "longpoll": "poll"})

    def __init__(self) -> None:
        super().__init__(["ws", "sse", "poll"])

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return super().convert(self.EARLIER.get(value, value), param, ctx)


@command("consume")
@click.argument("queue")
@click.option("--transport", type=Transport(), default="ws", show_default=True, help="How it is pushed.")
@click.option("--count", type=click.IntRange(min=1), help="End after so many messages; none beyond them is taken.")
@click.option(
    "--ack",
    type=click.Choice(["manual", "auto"]),
    default="manual",
    show_default=True,
    help="manual: acked once written to stdout. auto: gone as soon as it is sent, at most once.",
)
@click.option(
    "--credit", type=click.IntRange(1, CREDIT_MAX), help="Held at a time.  [default: 100, or a tenth of --count]"
)
@click.option("--from", "start", metavar="WHERE", help="Of a stream: earliest, latest, seq:N, time:T or cursor:C.")
@click.option(
    "--visibility-timeout",
    "--visibility-timeout-ms",
    "visibility_timeout_ms",
    type=DURATION,
    help="In place of the queue's: 500, 30s, 5m.",
)
@click.option("--group", help="Of a stream: as one of this consumer group; --from says where a new one begins.")
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

    Each line is seq, id, attempt and body; --json prints the whole message. What was held and not printed goes back to
    the queue, untried; and so does a line in a pipe whose reader leaves before it took it.
    """
    options = {"visibility_timeout_ms": visibility_timeout_ms, "from_": parse_start(start), "group": group}
    consumer = Consumer(queue, options, count=count, credit=credit, as_json=as_json)
    run(consumer.run(target, cast("TransportName", transport), is_auto=ack == "auto"))


def parse_start(text: str | None) -> From | None:
    """`earliest`, `latest`, `seq:42`, `time:…`, `cursor:…` as the API says them."""
    if text is None or text in ("earliest", "latest"):
        return cast("From | None", text)
    name, colon, value = text.partition(":")
    if name not in ("seq", "time", "cursor") or not colon or (name == "seq" and not value.isdecimal()):
        raise click.BadParameter(f"{text!r} is not earliest, latest, seq:N, time:T or cursor:C", param_hint="--from")
    return {name: int(value) if name == "seq" else value}
