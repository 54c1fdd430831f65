"""`pushq consume`: prints pushed messages, one per line; a message is acked when its line was written."""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, cast

import click

from gateway.commands.base import command, json_option, run
from gateway.commands.consumer import Consumer, Wishes
from gateway.commands.figures import WholeRange
from gateway.commands.formats import Show, line, raw, template, whole
from gateway.commands.moments import DURATION
from gateway.commands.names import group_names, queue_names
from gateway.commands.target import Target, target_options

if TYPE_CHECKING:
    from push.client.model import From, TransportName

CREDIT_MAX = 10_000


class Transport(click.Choice[str]):
    """One of three; longer names that the JavaScript client used earlier are accepted, too."""

    EARLIER = MappingProxyType({"websocket": "ws", "longpoll": "poll"})

    def __init__(self) -> None:
        super().__init__(["ws", "sse", "poll"])

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return super().convert(self.EARLIER.get(value, value), param, ctx)


@command("consume")
@click.argument("queue", shell_complete=queue_names)
@click.option("--transport", type=Transport(), default="ws", show_default=True, help="The transport.")
@click.option("--count", type=WholeRange(min=1), help="Stop after this many messages; no more are taken.")
@click.option(
    "--ack",
    type=click.Choice(["manual", "auto"]),
    default=None,
    help="manual: ack after writing to stdout. auto: settle as soon as it is sent (at most once).  [default: manual]",
)
@click.option(
    "--no-ack", is_flag=True, help="Show each message once, then return them all without counting an attempt."
)
@click.option("--until-empty", is_flag=True, help="Stop when no more messages arrive and none are ready.")
@click.option("--raw", "is_raw", is_flag=True, help="Print only the bodies.")
@click.option(
    "--format",
    "format_text",
    metavar="TEMPLATE",
    help="Print each message with this template: '{id} {attempt} {headers.x} {body}'.",
)
@click.option(
    "--null", "-0", "ends_with_null", is_flag=True, help="End each message with a NUL byte instead of a newline."
)
@click.option(
    "--credit",
    type=WholeRange(1, CREDIT_MAX),
    help="Maximum messages in flight.  [default: 100, or a tenth of --count; 1000 with --no-ack]",
)
@click.option(
    "--from", "start", metavar="WHERE", help="Where to start in a stream: earliest, latest, seq:N, time:T or cursor:C."
)
@click.option(
    "--visibility-timeout",
    "--visibility-timeout-ms",
    "visibility_timeout_ms",
    type=DURATION,
    help="Override the queue's visibility timeout: 500, 30s, 5m.",
)
@click.option(
    "--group",
    shell_complete=group_names,
    help="Consume a stream as this consumer group; --from sets where a new group starts.",
)
@target_options
@json_option
def consume(
    queue: str,
    transport: str,
    count: int | None,
    ack: str | None,
    no_ack: bool,
    until_empty: bool,
    is_raw: bool,
    format_text: str | None,
    ends_with_null: bool,
    credit: int | None,
    start: str | None,
    visibility_timeout_ms: int | None,
    group: str | None,
    target: Target,
    as_json: bool,
) -> None:
    """Print messages of QUEUE as they arrive.

    Runs until --count messages are printed, or Ctrl-C. Each line is seq, id, attempt and body; --json prints the whole
    message. Messages that were held but not printed return to the queue without counting an attempt. So does a line in
    a pipe whose reader exits before taking it, and usually also the last lines it took, because pushq cannot know
    whether they were used: `pushq consume q | head -1` shows a message and leaves it in the queue, while --count 1
    takes exactly one.

    --raw prints bodies only: bytes as they were published, JSON on one line. A --format names fields in braces: id,
    queue, seq, partition, attempt, key, priority, published_at, expires_at, content_type, reply_to, correlation_id,
    producer, producer_seq, headers, headers.NAME, body (as --raw prints it) and text (like body, but a JSON string
    without its quotes). Missing fields are empty; {{, }}, \\\\, \\n, \\t, \\r and \\0 have their usual meaning.

    --until-empty exits with 0 when nothing arrived for one second and the queue reports no ready messages (with
    --group: no lag). Scheduled messages and those held by other consumers are ignored. While the connection is down, it
    waits. --no-ack holds the messages it has shown until it exits, up to --count or --credit (over SSE for one second
    longer); if the command is killed, they count as attempts. Both read the queue's stats, so the key needs the scope
    view.
    """
    wishes = Wishes(
        count=count,
        credit=credit,
        ack=_ack(ack, no_ack),
        until_empty=until_empty,
        show=_show(as_json=as_json, is_raw=is_raw, format_text=format_text),
        end=b"\0" if ends_with_null else b"\n",
    )
    _check_kept(wishes)
    options = {"visibility_timeout_ms": visibility_timeout_ms, "from_": parse_start(start), "group": group}
    run(Consumer(queue, options, wishes).run(target, cast("TransportName", transport)))


def _show(*, as_json: bool, is_raw: bool, format_text: str | None) -> Show:
    if as_json + is_raw + (format_text is not None) > 1:
        raise click.UsageError("--json, --raw and --format are mutually exclusive")
    if format_text is not None:
        return template(format_text)
    return whole if as_json else raw if is_raw else line


def _ack(ack: str | None, no_ack: bool) -> Literal["manual", "auto", "none"]:
    if no_ack and ack is not None:
        raise click.UsageError(f"--no-ack acks nothing, so --ack {ack} has no effect: remove one of them")
    return "none" if no_ack else cast("Literal['manual', 'auto']", ack or "manual")


def _check_kept(wishes: Wishes) -> None:
    """Messages shown without an ack stay leased, so there cannot be more than credit."""
    if wishes.ack != "none" or wishes.count is None:
        return
    if wishes.count > (most := wishes.credit or CREDIT_MAX):
        raise click.UsageError(
            f"--no-ack holds the messages it shows until it exits, at most {most}: --count {wishes.count} is too high"
            + (f"; raise --credit, up to {CREDIT_MAX}" if wishes.credit else "")
        )


def parse_start(text: str | None) -> From | None:
    """Converts `earliest`, `latest`, `seq:42`, `time:…`, `cursor:…` to the API's form."""
    if text is None or text in ("earliest", "latest"):
        return cast("From | None", text)
    name, colon, value = text.partition(":")
    if name not in ("seq", "time", "cursor") or not colon or (name == "seq" and not re.fullmatch("[0-9]{1,19}", value)):
        raise click.BadParameter(
            f"invalid position {text!r}: use earliest, latest, seq:N, time:T or cursor:C", param_hint="--from"
        )
    return {name: int(value) if name == "seq" else value}
