"""`pushq publish`: publishes an argument or a pipe; returns when the messages are durable on the server."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from gateway.commands.base import command, json_option, run
from gateway.commands.exits import Failure, translate
from gateway.commands.figures import WholeRange
from gateway.commands.lines import Line, Lines
from gateway.commands.messages import as_body, parse_headers
from gateway.commands.moments import DURATION
from gateway.commands.names import queue_names
from gateway.commands.output import json_line, progress, put, put_json, rate, tell
from gateway.commands.target import Target, target_options
from web_console.wording import counted

BEGINS_AS_JSON = "it starts like JSON but is not valid JSON"
TIMEOUT_MS_MAX = 60_000
"""The server's own bound. Importing it from the client would make every command start later."""

if TYPE_CHECKING:
    from push.client import Outgoing, Published, PublishManyFailed, Pushq


def _in_range(context: click.Context, option: click.Parameter, timeout_ms: int | None) -> int | None:
    if timeout_ms is not None and not 1 <= timeout_ms <= TIMEOUT_MS_MAX:
        raise click.BadParameter(f"the timeout must be between 1 and {TIMEOUT_MS_MAX} ms, not {timeout_ms}")
    return timeout_ms


@command("publish")
@click.argument("queue", shell_complete=queue_names)
@click.argument("body", required=False)
@click.option("--lines", is_flag=True, help="Publish each line of stdin as a message.")
@click.option("--key", help="Key for ordering: messages with the same key belong together.")
@click.option("--id", "message_id", help="The message's id, instead of a generated one.")
@click.option("--idempotency-key", metavar="KEY", help="Publishing again with the same idempotency key stores nothing.")
@click.option("--header", "headers", metavar="NAME=VALUE", multiple=True, help="Repeats.")
@click.option("--content-type", help="Send the body's bytes unchanged, with this content type.")
@click.option("--text", "is_text", is_flag=True, help="Send the body as text, even if it is valid JSON.")
@click.option("--priority", type=WholeRange(min=0), help="Higher priorities are delivered first.")
@click.option(
    "--delay", "--delay-ms", "delay_ms", type=DURATION, help="Delay before it becomes ready: 500, 90s, 15m, 2h, 7d."
)
@click.option("--deliver-at", metavar="TIME", help="When it becomes ready, RFC 3339.")
@click.option("--ttl", "--ttl-ms", "ttl_ms", type=DURATION, help="How long it lives once it is ready.")
@click.option(
    "--timeout",
    "--timeout-ms",
    "timeout_ms",
    type=DURATION,
    callback=_in_range,
    help="How long to wait until it is stored: 500, 5s, up to 1m.",
)
@click.option("--reply-to", metavar="QUEUE", shell_complete=queue_names, help="The queue for replies.")
@click.option("--correlation-id", help="The correlation id that replies should carry.")
@target_options
@json_option
def publish(
    queue: str,
    body: str | None,
    lines: bool,
    message_id: str | None,
    idempotency_key: str | None,
    headers: Sequence[str],
    content_type: str | None,
    is_text: bool,
    timeout_ms: int | None,
    target: Target,
    as_json: bool,
    **fields: str | int | None,
) -> None:
    """Publish BODY to QUEUE; `-` reads it from stdin.

    JSON is sent as its value, other text as a JSON string, and other bytes unchanged. Prints the id of each message;
    with --lines only the count, unless --json asks for a line of JSON for each message.
    """
    if lines and (body not in (None, "-") or message_id is not None):
        raise click.UsageError("--lines reads messages from stdin, so BODY and --id are not allowed")
    if lines and idempotency_key is not None:
        raise click.UsageError("--idempotency-key applies to one message, but --lines sends many")
    options = fields | {"headers": parse_headers(headers), "content_type": content_type}
    parse = _Parser(is_text=is_text, is_verbatim=content_type is not None, options=options)
    if lines:
        run(_publish_lines(queue, sys.stdin.buffer, parse, target, timeout_ms, as_json))
        return
    message = parse(_read(body), message_id)
    stored = run(_publish_one(queue, message, target, idempotency_key, timeout_ms))
    if as_json:
        put_json(_fields(stored))
    else:
        put(stored.id)
        tell(f'published to "{queue}", seq {stored.seq}' + (", a duplicate" if stored.duplicate else ""))


class _Parser:
    """Builds a message from bytes and the options, which apply to each message."""

    def __init__(self, *, is_text: bool, is_verbatim: bool, options: dict[str, Any]) -> None:
        self._is_text = is_text
        self._is_verbatim = is_verbatim
        self._options = options
        self.doubted = 0

    def __call__(self, raw: bytes, message_id: str | None = None) -> Outgoing:
        from push.client import Outgoing

        body = as_body(raw, is_text=self._is_text, is_verbatim=self._is_verbatim, doubt=self._doubt)
        return Outgoing(body=body, id=message_id, **self._options)

    def _doubt(self, why: str) -> None:
        """Warns once per command: a log whose lines begin with a bracket is text, and has many of them."""
        self.doubted += 1
        if self.doubted == 1:
            tell(f"warning: {BEGINS_AS_JSON}: {why}. Sent as text; use --text if you meant that")


def _read(body: str | None) -> bytes:
    """The argument, or all of stdin. An empty pipe without `-` is a forgotten body, not an empty message."""
    if body is not None and body != "-":
        return os.fsencode(body)
    if body is None and sys.stdin.isatty():
        raise click.UsageError("BODY is missing; give a body, or `-` to read stdin")
    raw = sys.stdin.buffer.read()
    if body is None and not raw:
        raise click.UsageError("BODY is missing and stdin is empty")
    return raw


async def _publish_one(
    queue: str, message: Outgoing, target: Target, idempotency_key: str | None, timeout_ms: int | None
) -> Published:
    fields = {name: getattr(message, name) for name in message.__struct_fields__}
    async with target.connect() as pushq:
        timeout = _seconds(timeout_ms)
        return await pushq.publish(queue, **fields, idempotency_key=idempotency_key, timeout=timeout)


async def _publish_lines(
    queue: str, source: BinaryIO, parse: _Parser, target: Target, timeout_ms: int | None, as_json: bool
) -> None:
    """Publishes each batch in one call: a line of a slow pipe is sent at once, those of a fast one by the thousand."""
    count, under_way, lines = 0, 0, Lines(source)
    async with target.connect() as pushq:
        began = time.monotonic()
        try:
            with progress(f"publishing to {queue} (bytes)", lines.bytes_total) as advance:
                async for batch in lines:
                    under_way = len(batch)
                    stored = await _store(pushq, queue, batch, parse, timeout_ms, count)
                    under_way = 0
                    count += len(stored)
                    advance(lines.bytes_read)
                    if as_json:
                        put("\n".join(json_line(_fields(each)) for each in stored))
        except asyncio.CancelledError:
            tell(_stopped(queue, count, under_way))
            raise
    seconds = time.monotonic() - began
    if parse.doubted > 1:
        tell(f"warning: {parse.doubted} lines that start like JSON were sent as text")
    tell(f'published {counted(count, "message")} to "{queue}" in {seconds:.2f} s, {rate(count, seconds)}')


def _stopped(queue: str, count: int, under_way: int) -> str:
    """The message for Ctrl-C: it says where to resume."""
    said = f'stopped: {counted(count, "message is", "messages are")} stored in "{queue}"'
    return said + (f"; some of the next {counted(under_way, 'line')} may be stored too" if under_way else "")


async def _store(
    pushq: Pushq, queue: str, batch: Sequence[Line], parse: _Parser, timeout_ms: int | None, before: int
) -> list[Published]:
    from push.client import PublishManyFailed

    try:
        return await pushq.publish_many(queue, [parse(line.text) for line in batch], timeout=_seconds(timeout_ms))
    except PublishManyFailed as failed:
        raise _failed_line(failed, batch, before) from None


def _failed_line(failed: PublishManyFailed, batch: Sequence[Line], before: int) -> Failure:
    """The failure for the first refused line; it also says how many messages are stored."""
    from push.client import PushqError

    refused = [(line, each) for line, each in zip(batch, failed.results, strict=True) if isinstance(each, PushqError)]
    line, error = refused[0]
    failure = translate(error) or Failure(str(error))
    stored = before + len(batch) - len(refused)
    failure.lines += (f"the error is about line {line.number}; {counted(stored, 'message is', 'messages are')} stored",)
    return failure


def _seconds(timeout_ms: int | None) -> float | None:
    return None if timeout_ms is None else timeout_ms / 1000


def _fields(stored: Published) -> dict[str, Any]:
    return {"id": stored.id, "seq": stored.seq, "partition": stored.partition, "duplicate": stored.duplicate}
