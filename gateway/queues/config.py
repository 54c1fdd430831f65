"""Validates queue configs from callers: checks each field, fills in defaults, and applies the rules for combinations.

A setting that the protocol has and this version does not is refused by name: ignoring it would show only when messages
are lost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from types import UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from backend_store.model import COMPANION, AutoExpand, FieldError, InvalidRequest, QueueConfig, Replication
from gateway.api.validate import escape, fields_with_whole_numbers, wrong_name
from gateway.identity.authorization import owner_of
from gateway.limits import TAG_BYTES_MAX, TAGS_MAX
from gateway.queues.rules import broken_rules
from gateway.queues.settings import FIXED, LATER_SETTINGS, PART_RANGES, RANGES, REPLICATION_RANGES
from push.problems import nearest

RETENTION_MS_DEFAULT: Final = 7 * 24 * 3600 * 1000
"""Default retention of streams: 7 days."""

_RANGES_OF: Final[dict[type[msgspec.Struct], dict[str, tuple[int, int]]]] = {
    QueueConfig: RANGES,
    AutoExpand: PART_RANGES,
    Replication: REPLICATION_RANGES,
}

_UNSAID: Final = Replication()
_Default = Callable[[QueueConfig], Any]


def _lease_mode(config: QueueConfig) -> str:
    needs_it = config.ordering == "strict" or config.delivery == "exactly_once"
    allows_it = config.delivery != "at_most_once" and config.durability == "fsync"
    return "replicated" if needs_it and allows_it else "memory"


def _fair_by(config: QueueConfig) -> str:
    as_they_came = config.ordering == "best_effort" and config.sequencing == "arrival"
    return "key" if config.kind == "work" and as_they_came else "none"


DEFAULTS: Final[dict[str, _Default]] = {
    "dedupe": lambda config: "id" if config.delivery == "exactly_once" else "none",
    "lease_mode": _lease_mode,
    "fair_by": _fair_by,
    "retention_ms": lambda config: RETENTION_MS_DEFAULT if config.kind == "stream" else None,
}
"""Defaults that depend on other settings. They are stored, so that a config shows the values in effect."""

_DEFAULTED: Final = frozenset({"partitions", "priorities", "delay_ms", "retry_backoff_ms", "tags", "replication"})
"""Settings of which null says the default for a new queue. Of other numbers it could be meant as "without limit"."""


def queue_config(
    given: dict[str, Any],
    name: str = "",
    *,
    named: Collection[str] | None = None,
    known: QueueConfig | None = None,
) -> QueueConfig:
    """The config of the queue `name` from a request. Raises `InvalidRequest`, which names every field that is wrong.

    Without a name it is a template, which has no companion of its own. `named`: the fields that the caller sent, if
    those are not all of `given`. `known`: the config that the queue has so far.
    """
    given = fields_with_whole_numbers(given)
    if known is None:
        given = {setting: value for setting, value in given.items() if value is not None or setting not in _DEFAULTED}
    _refuse([*_wrong_fields(given, QueueConfig, ""), *_wrong_names(given, name), *_wrong_tags(given)])
    config = msgspec.convert(given, QueueConfig)
    left_out = {setting: default(config) for setting, default in DEFAULTS.items() if setting not in given}
    if name and config.dead_letter_queue == name + COMPANION:
        left_out["dead_letter_queue"] = COMPANION
    config = msgspec.structs.replace(config, **left_out)
    _refuse([*broken_rules(config, given if named is None else named, known)])
    return config


def changed_config(known: QueueConfig, changes: dict[str, Any], name: str) -> QueueConfig:
    """`known` with the changes of a request. Raises `InvalidRequest`."""
    changes = fields_with_whole_numbers(changes)
    _refuse([*_wrong_changes(known, changes)])
    before = msgspec.to_builtins(shown_config(known, name))
    return queue_config(before | changes, name, named=changes, known=known)


def shown_config(config: QueueConfig, name: str, place: Replication = _UNSAID) -> QueueConfig:
    """The config as callers see it: with the replication of the queue's place, and the full name of its companion."""
    letters = config.dead_letter_queue
    letters = owner_of(name) + COMPANION if letters == COMPANION else letters
    return msgspec.structs.replace(config, dead_letter_queue=letters, replication=place)


def _refuse(errors: list[FieldError]) -> None:
    if errors:
        raise InvalidRequest(f"{errors[0].pointer}: {errors[0].detail}", errors=tuple(errors))


# ------------------------------------------------------------------------------------------------ field by field


def _wrong_fields(given: dict[str, Any], struct: type[msgspec.Struct], at: str) -> Iterable[FieldError]:
    kinds = get_type_hints(struct)
    ranges = _RANGES_OF[struct]
    if len(given) > len(kinds) + len(
        LATER_SETTINGS
    ):  # most are unknown, and to look for the nearest of each takes time
        yield FieldError(at, f"the config has {len(given)} settings; there are only {len(kinds)}")
        return
    for name, value in given.items():
        pointer = f"{at}/{escape(name[:200])}"
        if name in LATER_SETTINGS and struct is QueueConfig:
            yield FieldError(pointer, f"this version does not have the setting {name!r} yet")
        elif name not in kinds:
            yield FieldError(pointer, f"unknown setting {name[:200]!r}{nearest(name[:200], kinds)}")
        elif isinstance(value, dict) and (parts := _struct_of(kinds[name])) is not None:
            yield from _wrong_fields(value, parts, pointer)
            for missing in [field.name for field in msgspec.structs.fields(parts) if field.required]:
                if missing not in value:
                    yield FieldError(f"{pointer}/{missing}", f"{name} requires {missing!r}")
        elif (wrong := _wrong_value(name, value, kinds[name], ranges.get(name))) is not None:
            yield FieldError(pointer, wrong)


def _struct_of(kind: Any) -> type[msgspec.Struct] | None:
    """The struct type of a setting with parts, nullable or not; None for other settings."""
    kinds = get_args(kind) if get_origin(kind) in (UnionType, Union) else (kind,)
    return next((one for one in kinds if isinstance(one, type) and issubclass(one, msgspec.Struct)), None)


def _wrong_value(name: str, value: Any, kind: Any, bounds: tuple[int, int] | None) -> str | None:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        return _expected(kind) or str(error)
    if bounds is not None and value is not None:
        low, high = bounds
        return None if low <= value <= high else f"{name} must be between {low} and {high}, not {value}"
    return None


def _expected(kind: Any) -> str:
    if get_origin(kind) in (UnionType, Union):
        kind = next(one for one in get_args(kind) if one is not type(None))
    if get_origin(kind) is Literal:
        return "must be one of " + ", ".join(repr(choice) for choice in get_args(kind))
    return ""


def _wrong_names(given: dict[str, Any], name: str) -> Iterator[FieldError]:
    """Names of other queues that are impossible. `links` checks that the queues exist."""
    for setting in ("dead_letter_queue", "colocate_with"):
        other = given.get(setting)
        if isinstance(other, str) and (wrong := _wrong_other(setting, other, name)) is not None:
            yield FieldError(f"/{setting}", wrong)


def _wrong_other(setting: str, other: str, name: str) -> str | None:
    is_for_dead = setting == "dead_letter_queue"
    if is_for_dead and name and other == name + COMPANION:
        return None
    if name and other == name:
        return f"{other!r} is this queue itself; choose another"
    owner = owner_of(other)
    if owner and owner != other:
        remedy = (
            f"omit it to use {name or '<queue>'}{COMPANION}, or choose another queue"
            if is_for_dead
            else "choose another queue"
        )
        return f"{other!r} is a companion of the queue {owner!r} and accepts no messages from other queues; {remedy}"
    return wrong_name(other)


def _wrong_tags(given: dict[str, Any]) -> Iterator[FieldError]:
    tags = given.get("tags")
    if not isinstance(tags, dict) or not all(isinstance(text, str) for tag in tags.items() for text in tag):
        return
    if len(tags) > TAGS_MAX:
        yield FieldError("/tags", f"tags must have at most {TAGS_MAX} entries, not {len(tags)}")
    if (size := sum(len(k.encode()) + len(v.encode()) for k, v in tags.items())) > TAG_BYTES_MAX:
        yield FieldError("/tags", f"tags must have at most {TAG_BYTES_MAX} bytes, not {size}")


def _wrong_changes(known: QueueConfig, changes: dict[str, Any]) -> Iterator[FieldError]:
    for setting, why in FIXED.items():
        if setting == "replication":
            continue  # it is checked against what the queue's place has
        kept = getattr(known, setting)
        if setting in changes and changes[setting] != kept:
            detail = f"{setting} is {kept!r} and cannot change: {why}; create a new queue for {changes[setting]!r}"
            yield FieldError(f"/{setting}", detail)
    priorities = changes.get("priorities")
    if isinstance(priorities, int) and 1 <= priorities < known.priorities:
        detail = f"priorities cannot be lowered from {known.priorities}: messages may be waiting at the higher ones"
        yield FieldError("/priorities", f"{detail}; create a new queue for {priorities}")
