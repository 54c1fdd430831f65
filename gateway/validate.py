"""Names and queue configs as callers write them, checked before anything happens.

A setting that exists in the protocol and not in this version is refused by its name: to take it and do nothing would be
a lie that shows only when messages are lost.
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

import msgspec

from backend_store.model import MESSAGE_BYTES_LIMIT, VISIBILITY_MS_MAX, FieldError, InvalidRequest, QueueConfig
from gateway.limits import NAME_CHARS_MAX, TAG_BYTES_MAX, TAGS_MAX
from gateway.policy import COMPANIONS, owner_of
from push.checks import field as invalid_field
from push.problems import nearest

_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.-]{{0,{NAME_CHARS_MAX - 1}}}")
NAME_RULE: Final = f"1 to {NAME_CHARS_MAX} of A-Z a-z 0-9 _ . - and begins with a letter or digit"

LATER_SETTINGS: Final = frozenset(
    {
        "sort_window_ms",
        "late_messages",
        "max_attempts",
        "retry_backoff_ms_max",
        "dedupe_window_ms",
        "key_run_max",
        "sort_held_messages_max",
        "auto_expand",
        "colocate_with",
    }
)
"""Settings of the protocol that this version does not have."""

LATER_VALUES: Final[dict[str, frozenset[str]]] = {
    "delivery": frozenset({"at_most_once", "exactly_once"}),
    "ordering": frozenset({"strict"}),
    "sequencing": frozenset({"producer", "clock"}),
    "overflow": frozenset({"dead_letter_oldest", "dead_letter_newest", "drop_oldest"}),
    "dedupe": frozenset({"id", "content"}),
    "durability": frozenset({"relaxed"}),
    "lease_mode": frozenset({"replicated"}),
    "fair_by": frozenset({"key"}),
    "mode": frozenset({"async"}),
    "model": frozenset({"independent_hosts"}),
}
"""Values of settings that this version has with fewer choices."""

RANGES: Final[dict[str, tuple[int, int]]] = {
    "visibility_timeout_ms": (0, VISIBILITY_MS_MAX),
    "max_message_bytes": (1, MESSAGE_BYTES_LIMIT),
}

ONLY: Final[dict[str, Any]] = {
    "partitions": 1,
    "delay_ms": 0,
    "retry_backoff_ms": 0,
    "priorities": 1,
    "encrypted": False,
    "factor": 1,
    "min_in_sync": 1,
}
"""Settings whose type allows more than this version does."""

FIXED_SETTINGS: Final = ("kind", "delivery", "ordering")
"""What a queue is; it cannot become another one."""


def check_name(name: str, *, what: str = "queue", pointer: str = "/name") -> None:
    """Raises `InvalidRequest`."""
    if _NAME.fullmatch(name) is None:
        raise invalid_field(pointer, f"{name[:200]!r} is no name of a {what}: it has {NAME_RULE}")


def check_new_queue_name(name: str) -> None:
    """Raises `InvalidRequest`. Names of companions are taken for the queues they will belong to."""
    check_name(name)
    if owner_of(name) != name:
        detail = f"{name!r}: names that end in {' or '.join(COMPANIONS)} belong to the queue {owner_of(name)!r}"
        raise invalid_field("/name", detail)


def queue_config(given: dict[str, Any]) -> QueueConfig:
    """A queue's config from a request. Raises `InvalidRequest` that names every field that is wrong."""
    given = with_whole_numbers(given)
    errors = list(_wrong_fields(given, QueueConfig, ""))
    if "tags" in given and not errors:
        errors += _wrong_tags(given["tags"])
    if errors:
        raise InvalidRequest(f"{errors[0].pointer}: {errors[0].detail}", errors=tuple(errors))
    return msgspec.convert(given, QueueConfig)


def changed_config(known: QueueConfig, changes: dict[str, Any]) -> QueueConfig:
    """`known` with the fields that a request names. Raises `InvalidRequest`."""
    for name in FIXED_SETTINGS:
        if name in changes and changes[name] != getattr(known, name):
            detail = (
                f"{name} cannot change: the queue is {getattr(known, name)!r}; make a new queue for {changes[name]!r}"
            )
            raise invalid_field(f"/{name}", detail)
    return queue_config(msgspec.to_builtins(known) | changes)


def with_whole_numbers(given: dict[str, Any]) -> dict[str, Any]:
    """JSON has one kind of number: 30000.0 is 30000."""
    return {
        name: int(value) if isinstance(value, float) and value.is_integer() else value for name, value in given.items()
    }


def _wrong_fields(given: dict[str, Any], struct: type[msgspec.Struct], at: str) -> Iterable[FieldError]:
    kinds = get_type_hints(struct)
    for name, value in given.items():
        pointer = f"{at}/{escape(name)}"
        if name in LATER_SETTINGS and struct is QueueConfig:
            yield FieldError(pointer, f"this version does not have the setting {name!r} yet")
        elif name not in kinds:
            yield FieldError(pointer, f"there is no setting {name!r}{nearest(name, kinds)}")
        elif isinstance(value, dict) and isinstance(kinds[name], type) and issubclass(kinds[name], msgspec.Struct):
            yield from _wrong_fields(value, kinds[name], pointer)
        elif (wrong := _wrong_value(name, value, kinds[name])) is not None:
            yield FieldError(pointer, wrong)


def _wrong_value(name: str, value: Any, kind: Any) -> str | None:
    if kind is types.NoneType:
        return None if value is None else f"this version does not have {name!r} yet; leave it out or null"
    if isinstance(value, str) and value in LATER_VALUES.get(name, ()):
        return f"this version does not have {name!r}: {value!r} yet"
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        return _expected(kind) or str(error)
    if name in ONLY and value != ONLY[name]:
        return f"this version does not have {name!r} other than {msgspec.json.encode(ONLY[name]).decode()} yet"
    low, high = RANGES.get(name, (0, 0))
    if name in RANGES and not low <= value <= high:
        return f"{name} is {value}; it goes from {low} to {high}"
    return None


def _expected(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "this is none of " + ", ".join(repr(choice) for choice in get_args(kind))
    return ""


def _wrong_tags(tags: dict[str, str]) -> Iterable[FieldError]:
    if len(tags) > TAGS_MAX:
        yield FieldError("/tags", f"{len(tags)} tags; a queue has at most {TAGS_MAX}")
    if (size := sum(len(k.encode()) + len(v.encode()) for k, v in tags.items())) > TAG_BYTES_MAX:
        yield FieldError("/tags", f"{size} bytes of tags; a queue has at most {TAG_BYTES_MAX}")


# ------------------------------------------------------------------------------------------------------- small


def escape(step: str) -> str:
    """One step of an RFC 6901 pointer."""
    return step.replace("~", "~0").replace("/", "~1")


def time_ms(text: str, *, pointer: str) -> int:
    """An RFC 3339 time with a zone, as milliseconds. Raises `InvalidRequest`."""
    try:
        when = datetime.fromisoformat(text)
        if when.tzinfo is None:
            raise ValueError("no time zone")
        return max(0, int(when.astimezone(UTC).timestamp() * 1000))
    except (ValueError, OverflowError):
        raise invalid_field(pointer, f"{text[:100]!r} is no RFC 3339 time with a zone, such as 2026-11-21T10:00:00Z")
