"""Helpers for settings that are lists of tables: read from a file or, as JSON, from a variable."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

import msgspec

from push.problems import nearest

_UNKNOWN: Final = re.compile(r"unknown field `([^`]*)`")
_NO_CHOICE: Final = re.compile(r"Invalid enum value .* at `\$\.(\w+)")


def from_text(value: Any, key: str) -> Any:
    """Decodes a text as JSON; returns other values unchanged. Raises `ValueError`, which names the setting."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise ValueError(f"{key} is not valid JSON: {error}") from None


def given_entries(value: Any, key: str, most: int, fields: str) -> list[Any]:
    """The setting's entries, unchecked. Raises `ValueError`. `fields`: what an entry has, for the message."""
    given = from_text(value, key)
    if not isinstance(given, list):
        raise ValueError(f"{key} must be a list: write [[{key}]] with {fields}")
    if len(given) > most:
        raise ValueError(f"{key} has {len(given)} entries; the maximum is {most}")
    return given


def explained(error: msgspec.ValidationError, kind: type[msgspec.Struct]) -> str:
    """What is wrong with an entry of this kind, with the field that may be meant, or the values that a field takes."""
    said = str(error)
    if found := _UNKNOWN.search(said):
        return said + nearest(found[1], kind.__struct_fields__)
    if found := _NO_CHOICE.search(said):
        return f"{said}; {found[1]} is {one_of(get_type_hints(kind)[found[1]])}"
    return said


def one_of(hint: Any) -> str:
    """The values that a type with `Literal` takes: `memory or redis`."""
    *others, last = _choices(hint)
    return f"{', '.join(others)} or {last}" if others else last


def _choices(hint: Any) -> list[str]:
    seen: dict[str, None] = {}
    waiting = [hint]
    while waiting:
        one = waiting.pop(0)
        if get_origin(one) is Literal:
            seen |= dict.fromkeys(map(str, get_args(one)))
        else:
            waiting += get_args(one)
    return list(seen)


def check_unlike(values: Sequence[str], key: str, field: str, more: str = "") -> None:
    """Raises `ValueError` if two entries have the same value in a field. `more`: what to do about it, for the
    message."""
    first_at: dict[str, int] = {}
    for number, value in enumerate(values):
        if (first := first_at.setdefault(value, number)) != number:
            raise ValueError(f"{key}[{number}].{field}: {value!r} is already used by {key}[{first}]{more}")
