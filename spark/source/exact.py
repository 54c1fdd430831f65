"""Parses messages from JSON and keeps their bodies unchanged: not a digit of a number differs.

The standard decoder finds where a value ends, so a body is cut out of the text and never re-encoded.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

_VALUES: Final = json.JSONDecoder()
_EXTENTS: Final = json.JSONDecoder(parse_int=str, parse_float=str)
"""Only finds where a value ends: it accepts numbers of any length."""


_SPACE: Final = re.compile(r"[ \t\n\r]*")


class Cut(str):
    """The text of a JSON value."""

    __slots__ = ()


def messages_of(text: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Parses a response with `messages`: returns its other fields, and the messages, each `body` as a `Cut`."""
    found: list[dict[str, Any]] = []
    rest: dict[str, Any] = {}
    at = _expect(text, 0, "{")
    while text[at] != "}":
        name, at = _name(text, at)
        if name == "messages":
            at = _list(text, at, found)
        else:
            rest[name], at = _VALUES.raw_decode(text, at)
        at = _after(text, at)
    return rest, found


def _list(text: str, at: int, found: list[dict[str, Any]]) -> int:
    at = _expect(text, at, "[")
    while text[at] != "]":
        message, at = _message(text, at)
        found.append(message)
        at = _after(text, at)
    return at + 1


def _message(text: str, at: int) -> tuple[dict[str, Any], int]:
    message: dict[str, Any] = {}
    at = _expect(text, at, "{")
    while text[at] != "}":
        name, at = _name(text, at)
        if name == "body":
            _, end = _EXTENTS.raw_decode(text, at)
            message[name] = Cut(text[at:end])
            at = end
        else:
            message[name], at = _VALUES.raw_decode(text, at)
        at = _after(text, at)
    return message, at + 1


def _name(text: str, at: int) -> tuple[str, int]:
    name, at = _VALUES.raw_decode(text, at)
    return name, _expect(text, _skip(text, at), ":")


def _after(text: str, at: int) -> int:
    """The position after a value: the start of the next value, or the closing bracket."""
    at = _skip(text, at)
    return _skip(text, at + 1) if text[at] == "," else at


def _expect(text: str, at: int, sign: str) -> int:
    at = _skip(text, at)
    if text[at] != sign:
        raise ValueError(f"expected {sign!r} at character {at}")
    return _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found is not None else at
