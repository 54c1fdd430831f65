"""Values of rules about shards: how many replicas are not in sync, and how far the last one is behind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol


class Shard(Protocol):
    """A shard as the cluster's watch shows it. `lag`: by replica; None for one that has not asked its leader yet."""

    @property
    def name(self) -> str: ...
    @property
    def in_sync(self) -> Sequence[str]: ...
    @property
    def wanted(self) -> Sequence[str]: ...
    @property
    def lag(self) -> Mapping[str, int | None]: ...


def values(kind: str, shards: Iterable[Shard]) -> list[tuple[str, float | None]]:
    """Subject and value of each shard; None where the value is not known yet."""
    value = out_of_sync if kind == "out_of_sync" else replica_lag
    return [(f"shard-{shard.name}", value(shard)) for shard in shards]


def out_of_sync(shard: Shard) -> float:
    """How many planned replicas are not in sync. A replica that is being moved away does not count."""
    return len(set(shard.wanted) - set(shard.in_sync))


def replica_lag(shard: Shard) -> float | None:
    """The largest lag, in entries, of replicas that the leader has heard of; others are out of sync, another kind."""
    if not shard.lag:
        return 0 if len(shard.wanted) <= 1 else None
    known = [entries for entries in shard.lag.values() if entries is not None]
    return max(known) if known else None
