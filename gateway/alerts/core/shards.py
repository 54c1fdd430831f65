"""What rules about shards look at: how many replicas are not in sync, and how far the last one is behind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol


class Shard(Protocol):
    """A shard as the cluster's watch shows it. `lag`: None for a replica that has not asked its leader yet."""

    @property
    def name(self) -> str: ...
    @property
    def in_sync(self) -> Sequence[str]: ...
    @property
    def wanted(self) -> Sequence[str]: ...
    @property
    def lag(self) -> Mapping[str, int | None]: ...


def values(kind: str, shards: Iterable[Shard]) -> list[tuple[str, float | None]]:
    """Subject and value of each shard; None where nothing is known yet."""
    value = out_of_sync if kind == "out_of_sync" else replica_lag
    return [(f"shard-{shard.name}", value(shard)) for shard in shards]


def out_of_sync(shard: Shard) -> float:
    """Those that shall keep it and have not what is confirmed. One that is on its way elsewhere does not count."""
    return len(set(shard.wanted) - set(shard.in_sync))


def replica_lag(shard: Shard) -> float | None:
    """Of those that their leader has heard of; one that it has not is out of sync, which is the other kind's."""
    if not shard.lag:
        return 0 if len(shard.wanted) <= 1 else None
    known = [entries for entries in shard.lag.values() if entries is not None]
    return max(known) if known else None
