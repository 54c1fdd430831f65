"""Makes rate rules from the setting `throttling.rules`, and from a tenant's quotas."""

from __future__ import annotations

import re
from typing import Any, Final, Literal, cast

import msgspec

from backend_store.model import Quotas
from gateway.config.tables import explained, given_entries
from throttling.config import RATE_PER_S_MAX, RULES_MAX
from throttling.rules import DIMENSIONS, OPERATIONS, PER_PRINCIPAL, Dimension, Operation, Rule, Unit

_NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,31}")
RESERVED: Final = ("tenant-requests", "tenant-messages", "tenant-bytes")
"""Names of the rules made from tenants' quotas."""


class RateRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of `throttling.rules`."""

    name: str
    quota: int
    per: Dimension | tuple[Dimension, ...] = "principal"
    operations: tuple[Operation, ...] = OPERATIONS
    window_s: int = 1
    unit: Unit = "requests"
    when_store_is_away: Literal["open", "closed"] = "open"


def rate_rules(value: Any) -> tuple[RateRule, ...]:
    """Parses the setting's value, from a file or, as JSON, from a variable. Raises `ValueError`, which names the
    entry."""
    given = given_entries(value, "throttling.rules", RULES_MAX, "name, quota and the rest")
    entries: list[RateRule] = []
    for number, each in enumerate(given):
        at = f"throttling.rules[{number}]"
        try:
            entry = msgspec.convert(each, RateRule)
            _check(entry)
        except msgspec.ValidationError as error:
            raise ValueError(f"{at}: {explained(error, RateRule)}") from None
        except ValueError as error:
            raise ValueError(f"{at}: {error}") from None
        if entry.name in (other.name for other in entries):
            raise ValueError(f"{at}: duplicate rule {entry.name!r}; give each rule its own name")
        entries.append(entry)
    return tuple(entries)


def _check(entry: RateRule) -> None:
    if _NAME.fullmatch(entry.name) is None:
        raise ValueError(
            f"invalid name {entry.name[:100]!r}: use 1 to 32 characters from a-z 0-9 and -, starting with a letter"
        )
    if entry.name in RESERVED:
        raise ValueError(f"name {entry.name!r} is reserved for a tenant quota; choose another")
    per = _per(entry)
    if not per or len(set(per)) != len(per):
        raise ValueError(f"per must list at least one of {', '.join(DIMENSIONS)}, each at most once")
    if not entry.operations:
        raise ValueError(f"operations is empty; list some of {', '.join(OPERATIONS)}, or omit it for all operations")
    if entry.unit != "requests" and set(entry.operations) not in ({"publish"}, set(OPERATIONS)):
        raise ValueError(f"unit {entry.unit} applies to publishes only: set operations to publish, or omit it")
    if entry.name == PER_PRINCIPAL.name and (per, entry.unit, len(set(entry.operations))) != (
        ("principal",),
        "requests",
        len(OPERATIONS),
    ):
        raise ValueError(
            "the rule `principal` is reported in every response, so it cannot have per, unit or operations"
        )
    _rule(entry)


def _per(entry: RateRule) -> tuple[Dimension, ...]:
    return entry.per if isinstance(entry.per, tuple) else (entry.per,)


def _rule(entry: RateRule) -> Rule:
    """Raises `ValueError`."""
    return Rule(
        entry.name,
        entry.quota,
        entry.window_s,
        per=_per(entry),
        operations=frozenset({"publish"} if entry.unit != "requests" else entry.operations),
        unit=entry.unit,
        is_closed_without_store=entry.when_store_is_away == "closed",
    )


def rules_of(entries: tuple[RateRule, ...]) -> tuple[Rule, ...]:
    """The rules in effect. The one for principals always exists; a rule with its name replaces it."""
    rules = tuple(_rule(entry) for entry in entries)
    return rules if any(rule.name == PER_PRINCIPAL.name for rule in rules) else (PER_PRINCIPAL, *rules)


def rules_of_quotas(quotas: Quotas) -> tuple[Rule, ...]:
    """The rules for a tenant's rate quotas."""
    units = zip(("requests", "messages", "bytes"), _rates(quotas), strict=True)
    return tuple(
        Rule(
            f"tenant-{unit}",
            min(quota, RATE_PER_S_MAX),
            per=("tenant",),
            operations=frozenset(OPERATIONS if unit == "requests" else ("publish",)),
            unit=cast(Unit, unit),
        )
        for unit, quota in units
        if quota
    )


def _rates(quotas: Quotas) -> tuple[int | None, ...]:
    return quotas.requests_per_s, quotas.publish_messages_per_s, quotas.publish_bytes_per_s
