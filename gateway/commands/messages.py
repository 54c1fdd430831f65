"""Messages on the command line: converts the arguments of `publish` to a message, and a message to a line."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from gateway.commands.output import json_line

if TYPE_CHECKING:
    from push.client import Message


def parse_headers(pairs: Sequence[str]) -> dict[str, str] | None:
    """`NAME=VALUE` options as a mapping; None when there are none."""
    headers: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{pair!r} must be NAME=VALUE", param_hint="--header")
        headers[name] = value
    return headers or None


def as_body(
    raw: bytes, *, is_text: bool = False, is_verbatim: bool = False, doubt: Callable[[str], None] = lambda why: None
) -> Any:
    """The body of a message, from bytes of the command line or a pipe.

    JSON becomes its value, other text a JSON string without its final newline; bytes that are not text stay bytes.
    `is_text` keeps JSON as text. `is_verbatim` keeps every byte, because a content type was given. `doubt` is called
    for text that begins like JSON and is not: it may have been meant as JSON.
    """
    if is_verbatim:
        return raw
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return raw
    if not is_text:
        try:
            return json.loads(text, parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            if text.lstrip()[:1] in ("{", "["):
                doubt(str(error))
    return text.removesuffix("\n").removesuffix("\r")


def as_line(message: Mapping[str, Any]) -> str:
    """One message as one line: seq, id, what is known of state, attempt, key, due time and end, then the body."""
    shown = ("state", "attempt", "key", "due_at")
    known = [f"{name}={message[name]}" for name in shown if message.get(name) is not None]
    if (end := message.get("dead_letter")) is not None:
        known.append(f"reason={end['reason']}")
    return " ".join([str(message["seq"]), message["id"], *known, body_text(message)])


def body_text(message: Mapping[str, Any]) -> str:
    """The body on one line: JSON, or base64 after its content type."""
    if message.get("body_base64") is not None:
        return f"{message['content_type']};base64,{message['body_base64']}"
    if "body" not in message:
        return "(body hidden: it needs the scope consume, the key only has view)"
    return json_line(message["body"])


def fields_of(message: Message) -> dict[str, Any]:
    """A pushed message in the API's shape, without fields that are not set."""
    body = message.body
    is_bytes = isinstance(body, bytes)
    fields: dict[str, Any] = {
        "id": message.id,
        "seq": message.seq,
        "partition": message.partition,
        "body_base64" if is_bytes else "body": base64.b64encode(body).decode() if is_bytes else body,
        "content_type": message.content_type,
        "headers": dict(message.headers),
        "key": message.key,
        "priority": message.priority,
        "attempt": message.attempt,
        "published_at": message.published_at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "receipt": message.receipt,
    }
    extra = {
        "producer": message.producer,
        "producer_seq": message.producer_seq,
        "reply_to": message.reply_to,
        "correlation_id": message.correlation_id,
    }
    return fields | {name: value for name, value in extra.items() if value is not None}


def _refuse(constant: str) -> Any:
    # Python parses NaN and Infinity, which JSON does not have: they stay text.
    raise ValueError(constant)
