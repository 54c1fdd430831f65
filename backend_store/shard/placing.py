"""Decides where shards are placed, and when a leader hands its leadership over. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec

from backend_store.core.host_lanes.table import CLUSTER_DEFAULT, first_lanes
from backend_store.core.replication.record import Mode, NodeId, PartitionRecord
from backend_store.shard.interface import ShardNumber


class Plan(msgspec.Struct, frozen=True):
    """The target of a shard, which its record approaches step by step. The first replica is the shard's home, which
    leads it when all replicas are well."""

    shard: ShardNumber
    replicas: tuple[NodeId, ...]
    min_in_sync: int
    mode: Mode = "sync"
    lanes: int = 0
    """Of a lane: the number of lanes; 0: a shard that any replica may lead."""


decode_plan = msgspec.json.Decoder(Plan).decode


def place(
    shard: ShardNumber, plans: Collection[Plan], zones: Mapping[NodeId, str], *, replicas: int
) -> tuple[NodeId, ...] | None:
    """Replicas for a new shard: each in a zone of its own while there are zones, on the least loaded nodes. None: too
    few nodes."""
    if len(zones) < replicas:
        return None
    homes = Counter(plan.replicas[0] for plan in plans)
    copies = Counter(node for plan in plans for node in plan.replicas)
    chosen: list[NodeId] = []
    used: Counter[str] = Counter()
    for place in range(replicas):
        load = homes if place == 0 else copies
        best = min(
            (node for node in zones if node not in chosen),
            key=lambda node: (used[zones[node]], load[node], copies[node], (hash_of(shard, node)), node),
        )
        chosen.append(best)
        used[zones[best]] += 1
    return tuple(chosen)


class Modes(NamedTuple):
    """How many shards there are to be of each mode."""

    mode: Mode
    """The mode of shards for queues that do not ask for one."""
    shards: int
    """The number of these shards. Of several the first is always sync, as it has all definitions: a queue's number that
    was given out must not be lost."""
    async_shards: int
    """The number of further shards, for queues that ask for async."""

    def of(self, shard: ShardNumber, plans: Collection[Plan]) -> Mode:
        """The mode of a new shard; `plans` are those of the shards before it. Where a cluster grows, new shards come
        after the async ones."""
        if shard == 0 and self.shards + self.async_shards > 1:
            return "sync"
        is_extra = shard >= self.shards and sum(plan.mode == "async" for plan in plans) < self.async_shards
        return "async" if is_extra else self.mode


def place_lane(
    lane: ShardNumber,
    plans: Mapping[ShardNumber, Plan],
    zones: Mapping[NodeId, str],
    *,
    lanes: int,
    holders_max: int,
    min_in_sync: int,
) -> tuple[NodeId, ...] | None:
    """Holders of a new lane of an independent host, which comes first. None: too few hosts.

    Each decision about a further lane finds the same order: planned homes stay, the other hosts come by name,
    alternating between zones, so that a host's neighbours are in other zones.
    """
    planned = {number: plan.replicas[0] for number, plan in plans.items() if number < lanes}
    rank: Counter[str] = Counter()
    order: list[tuple[int, NodeId]] = []
    for node in sorted(zones):
        order.append((rank[zones[node]], node))
        rank[zones[node]] += 1
    free = [node for _, node in sorted(order) if node not in planned.values()]
    if len(planned) + len(free) < lanes:
        return None
    rest = iter(free)
    hosts = [planned.get(ShardNumber(number)) or next(rest) for number in range(lanes)]
    table = first_lanes({CLUSTER_DEFAULT: hosts}, min_in_sync=min_in_sync, holders_max=holders_max)
    return tuple(NodeId(host) for host in table.lanes[lane].holders)


def hash_of(shard: int, node: str) -> int:
    """Breaks ties evenly; the same on all nodes."""
    value = shard + 1
    for byte in node.encode():
        value = (value * 31 + byte) % 1_000_003
    return value


def successor(
    record: PartitionRecord,
    me: NodeId,
    *,
    wanted: Sequence[NodeId],
    alive: Collection[NodeId],
    draining: Collection[NodeId],
    home_ready: bool,
) -> NodeId | None:
    """The node that the leader hands over to now: another one in sync when the leader drains or is not to keep the
    shard, the home when that is ready; None: no handover.

    `wanted`: the planned replicas, the home first. While fewer than `min_in_sync` are in sync no node is chosen, for
    the next leader could not commit either.
    """
    if record.leader != me or record.is_short:
        return None
    able = [node for node in (*wanted, *record.replicas) if node in record.isr and node in alive]
    others = [node for node in able if node not in draining and node != me]
    if me in draining:
        return others[0] if others else None
    if me not in wanted:
        return others[0] if others and others[0] in wanted else None
    return wanted[0] if home_ready and wanted[0] in others else None
