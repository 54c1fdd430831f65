"""Validates names and times that callers send, before anything is done with them. `queues.config` validates configs."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, Final

from gateway.identity.authorization import COMPANIONS, owner_of
from gateway.limits import FIELDS_DEPTH_MAX, NAME_CHARS_MAX
from push.operations.checks import field as invalid_field

_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.-]{{0,{NAME_CHARS_MAX - 1}}}")
NAME_RULE: Final = f"1 to {NAME_CHARS_MAX} characters from A-Z a-z 0-9 _ . -, starting with a letter or digit"


def check_name(name: str, *, what: str = "queue", pointer: str = "/name") -> None:
    """Raises `InvalidRequest`."""
    if (wrong := wrong_name(name, what=what)) is not None:
        raise invalid_field(pointer, wrong)


def wrong_name(name: str, *, what: str = "queue") -> str | None:
    """What is wrong with a name, as a message; None if it is valid."""
    return None if _NAME.fullmatch(name) else f"invalid {what} name {name[:200]!r}: use {NAME_RULE}"


def check_new_queue_name(name: str) -> None:
    """Raises `InvalidRequest` for an invalid name, and for that of a companion: those are reserved for their queues."""
    check_name(name)
    if owner_of(name) != name:
        detail = f"{name!r}: names that end in {' or '.join(COMPANIONS)} belong to the queue {owner_of(name)!r}"
        raise invalid_field("/name", detail)


def check_no_companion(name: str) -> None:
    """Raises `InvalidRequest` for a companion, which has no config of its own and is deleted with its queue."""
    if (owner := owner_of(name)) != name:
        detail = f"{name!r} belongs to the queue {owner!r} and shares its lifetime and settings; change {owner!r}"
        raise invalid_field("/name", detail)


def fields_with_whole_numbers(given: dict[str, Any], *, levels: int = FIELDS_DEPTH_MAX) -> dict[str, Any]:
    """Turns whole floats such as 30000.0 into integers in decoded JSON whose types are checked later;
    `encoding.whole_numbers` does so for text of a known type. Raises `InvalidRequest` for values nested too deep."""
    if not levels:
        raise invalid_field("", f"fields are nested more than {FIELDS_DEPTH_MAX} levels deep")
    return {name: _value_with_whole_numbers(value, levels - 1) for name, value in given.items()}


def _value_with_whole_numbers(value: Any, levels: int) -> Any:
    if isinstance(value, dict):
        return fields_with_whole_numbers(value, levels=levels)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def escape(step: str) -> str:
    """Escapes one step of a JSON pointer (RFC 6901)."""
    return step.replace("~", "~0").replace("/", "~1")


def time_ms(text: str, *, pointer: str) -> int:
    """An RFC 3339 time with a zone, in ms since 1970. Raises `InvalidRequest`."""
    try:
        when = datetime.fromisoformat(text)
        if when.tzinfo is None:
            raise ValueError("no time zone")
        return max(0, int(when.astimezone(UTC).timestamp() * 1000))
    except (ValueError, OverflowError):
        raise invalid_field(
            pointer, f"invalid time {text[:100]!r}: use RFC 3339 with a time zone, such as 2026-11-21T10:00:00Z"
        )
