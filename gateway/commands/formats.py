"""The output formats of `consume`: a line, JSON, the body alone, or a template such as `{id} {body}`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import click

from gateway.commands.messages import as_line, fields_of
from gateway.commands.output import json_line

if TYPE_CHECKING:
    from push.client import Message

Show = Callable[["Message"], bytes]
"""Returns the bytes to print for a message, without the line ending."""

FORMAT_CHARS_MAX: Final = 4096
_HEADER: Final = "headers."
_ESCAPES: Final = {"\\n": "\n", "\\t": "\t", "\\r": "\r", "\\0": "\0", "\\\\": "\\"}
_PIECES: Final = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]|\\.?", re.DOTALL)


def line(message: Message) -> bytes:
    """Seq, id, attempt and body."""
    return as_line(fields_of(message)).encode()


def whole(message: Message) -> bytes:
    """The whole message as one line of JSON."""
    return json_line(fields_of(message)).encode()


def raw(message: Message) -> bytes:
    """The body alone: bytes as they were published, a JSON body as JSON on one line."""
    body = message.body
    return body if isinstance(body, bytes) else json_line(body).encode()


def _text(message: Message) -> bytes:
    """Like `raw`, but a JSON string is printed without quotes."""
    body = message.body
    return body.encode() if isinstance(body, str) else raw(message)


def _shown(value: Any) -> bytes:
    """Text as is, nothing for null, a time as RFC 3339, all else as JSON."""
    if value is None:
        return b""
    if isinstance(value, datetime):
        value = value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return (value if isinstance(value, str) else json_line(value)).encode()


def _attribute(name: str) -> Show:
    return lambda message: _shown(getattr(message, name))


_ATTRIBUTES: Final = ("id", "queue", "seq", "partition", "attempt", "key", "priority", "published_at", "expires_at")
_MORE: Final = ("content_type", "reply_to", "correlation_id", "producer", "producer_seq")
FIELDS: Final[dict[str, Show]] = {
    **{name: _attribute(name) for name in (*_ATTRIBUTES, *_MORE)},
    "headers": lambda message: _shown(dict(message.headers)),
    "body": raw,
    "text": _text,
}
"""The fields of templates, besides `headers.NAME`."""


def template(text: str) -> Show:
    """The formatter for the template `text`. Raises `BadParameter` that says what is wrong in it.

    `{name}` is a field, `{headers.x}` one header; `{{`, `}}` and `\\\\` stand for themselves, `\\n`, `\\t`, `\\r` and
    `\\0` for the characters. A field that a message does not have is empty.
    """
    if len(text) > FORMAT_CHARS_MAX:
        raise _wrong(f"the format has {len(text)} characters; the maximum is {FORMAT_CHARS_MAX}")
    parts: list[bytes | Show] = []
    end = 0
    for found in _PIECES.finditer(text):
        parts += [_plain(text[end : found.start()]), _part(found)]
        end = found.end()
    parts.append(_plain(text[end:]))
    return lambda message: b"".join(part if isinstance(part, bytes) else part(message) for part in parts)


def _part(found: re.Match[str]) -> bytes | Show:
    piece, name = found[0], found[1]
    if name is not None:
        return _named(name)
    if piece in ("{{", "}}"):
        return piece[:1].encode()
    if piece in ("{", "}"):
        raise _wrong(f"unpaired {piece} at character {found.start() + 1}; write {piece * 2} for a literal one")
    if piece not in _ESCAPES:
        raise _wrong(f"unknown escape {piece!r} at character {found.start() + 1}; use \\n, \\t, \\r, \\0 or \\\\")
    return _ESCAPES[piece].encode()


def _named(name: str) -> Show:
    if (show := FIELDS.get("attempt" if name == "attempts" else name)) is not None:
        return show
    if name.startswith(_HEADER) and name != _HEADER:
        header = name.removeprefix(_HEADER)
        return lambda message: _shown(message.headers.get(header))
    near = difflib.get_close_matches(name, FIELDS, n=1)
    meant = f"; did you mean {{{near[0]}}}? " if near else ". "
    raise _wrong(f"unknown field {{{name}}}{meant}The fields are {', '.join(FIELDS)} and headers.NAME")


def _plain(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


def _wrong(why: str) -> click.BadParameter:
    return click.BadParameter(why, param_hint="--format")
