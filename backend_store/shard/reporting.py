"""A backend's report of itself for observers of the cluster: its disk, and the lag of its followers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from backend_store.core.replication.record import NodeId
from backend_store.node.meter import Load
from backend_store.shard.hosted import HostedShard
from backend_store.shard.members import Report

_MIB = 1 << 20
_STEPS = 20


def report_of(directory: Path, shards: Iterable[HostedShard], quarantined: Mapping[int, int], load: Load) -> Report:
    """`quarantined`: messages by shard. Raises `OSError`."""
    shards = list(shards)
    disk = os.statvfs(directory)
    lag = {str(shard.number): found for shard in shards if (found := lag_of(shard)) is not None}
    used, free = (disk.f_blocks - disk.f_bfree) * disk.f_frsize, disk.f_bavail * disk.f_frsize
    kept = {str(number): count for number, count in quarantined.items()}
    fullest = load.fullest(used / max(1, used + free))
    # Rounded to whole MiB and twentieths: a report that has not changed is not written again.
    damaged = {str(shard.number): rows for shard in shards if (rows := shard.replicated.damaged)}
    repairs = {str(shard.number): times for shard in shards if (times := shard.replicated.repairs)}
    used_part = round(fullest * _STEPS) / _STEPS
    return Report(used // _MIB * _MIB, free // _MIB * _MIB, lag, kept, used_part, damaged, repairs)


def lag_of(shard: HostedShard) -> dict[NodeId, int | None] | None:
    """Entries that each other replica does not have on its disk yet, as far as the leader knows; None: not led here."""
    leader, log = shard.replicated.replica.leader, shard.replicated.replica.log
    if leader is None:
        return None
    lag: dict[NodeId, int | None] = {}
    for node in leader.record.replicas:
        if node != shard.replicated.replica.me.node:
            progress = leader.followers.get(node)
            end = None if progress is None else progress.end
            lag[node] = None if end is None else log.end - end
    return lag
