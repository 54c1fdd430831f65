"""What a rule is: its kinds, and the fields that each kind needs."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

import msgspec

About = Literal["queue", "tenant", "node", "shard"]
Severity = Literal["info", "warning", "critical"]

HYSTERESIS: Final = 0.1
"""See `Kind.hysteresis`."""


class Kind(NamedTuple):
    """One kind of rule. `is_above`: values above the limit are bad; otherwise those below."""

    about: About
    unit: str
    meaning: str
    is_above: bool = True
    has_window: bool = False
    is_slo: bool = False
    total_of: str | None = None
    """Set if all of the rule's queues have one value: the sum of this kind's values. Its subject is the pattern."""
    is_signed: bool = False
    """Its values, and so its limit, may be below 0."""
    hysteresis: float = HYSTERESIS
    """How far from the limit, as a fraction of it, a value must be by default before an alert is over."""

    @property
    def has_queues(self) -> bool:
        """It evaluates the queues that the rule's pattern names: each, or all of them together."""
        return self.about == "queue" or self.is_slo or self.total_of is not None

    @property
    def is_for_operators(self) -> bool:
        """It is about what all tenants share, which no tenant may see."""
        return self.about in ("node", "shard")


KINDS: Final[dict[str, Kind]] = {
    "depth": Kind("queue", "messages", "Messages waiting for a consumer."),
    "growth": Kind(
        "queue", "messages/s", "Growth rate of waiting messages over the window.", True, True,
        is_signed=True,
    ),
    "oldest_age_ms": Kind("queue", "ms", "Age of the oldest unacknowledged message."),
    "dead_letters": Kind("queue", "messages", "Messages in the queue's dead letters."),
    "dead_letter_rate": Kind("queue", "messages/min", "Messages ended unacknowledged, over the window.", True, True),
    "redelivery_rate": Kind("queue", "messages/min", "Messages redelivered, over the window.", True, True),
    "consumer_absence": Kind("queue", "messages", "Messages waiting while no consumer is connected."),
    "total_depth": Kind(
        "tenant", "messages", "Messages waiting in all of the rule's work queues together.", total_of="depth",
    ),
    "total_growth": Kind(
        "tenant", "messages/s", "Growth rate of those messages over the window.", True, True, is_signed=True,
        total_of="growth",
    ),
    "total_dead_letters": Kind(
        "tenant", "messages", "Messages in the dead letters of all the rule's queues together.",
        total_of="dead_letters",
    ),
    "total_dead_letter_rate": Kind(
        "tenant", "messages/min", "Messages that ended unacknowledged in all of them, over the window.", True, True,
        total_of="dead_letter_rate",
    ),
    "total_redelivery_rate": Kind(
        "tenant", "messages/min", "Messages redelivered in all of them, over the window.", True, True,
        total_of="redelivery_rate",
    ),
    "key_days": Kind("tenant", "days", "Days until one of the tenant's API keys expires.", False),
    "slo_availability": Kind(
        "tenant", "of the threshold", "How fast failing publishes burn the error budget, in two windows at once.",
        is_slo=True,
    ),
    "slo_latency": Kind(
        "tenant", "of the threshold", "How fast slow publishes burn the error budget, in two windows at once.",
        is_slo=True,
    ),
    "loop_lag_ms": Kind("node", "ms", "Maximum event loop lag in the last 10 s."),
    "disk_used_percent": Kind("node", "%", "How full the data folder's disk is."),
    "memory_used_percent": Kind("node", "%", "Memory used by the process, as a share of its limit."),
    "certificate_days": Kind("node", "days", "Days until the server's certificate expires.", False),
    "out_of_sync": Kind(
        "shard", "replicas", "Desired replicas of a shard that are not in sync.", hysteresis=0.0,
    ),
    "replica_lag": Kind(
        "shard", "entries", "Log entries by which a shard's slowest replica lags behind its leader.",
    ),
}  # fmt: skip


class Rule(msgspec.Struct, frozen=True):
    """A rule as it is stored. `limit` of an SLO is 1: its value is relative to the thresholds of burn rates."""

    id: str
    tenant: str
    name: str
    kind: str
    queue: str
    limit: float
    clear_at: float
    for_ms: int
    keep_ms: int
    window_ms: int
    severity: Severity
    receivers: tuple[str, ...]
    enabled: bool
    note: str
    objective: float | None
    latency_ms: int | None
    created_at_ms: int
    created_by: str
    updated_at_ms: int


def default_clear_at(kind: Kind, limit: float) -> float:
    """The limit less the kind's hysteresis, on the good side; the limit itself for kinds that count few things."""
    away = abs(limit) * kind.hysteresis
    return limit - away if kind.is_above else limit + away
