"""What a thousand nodes and a million queues cost: counted and timed with the real cores, not estimated.

`python -m tests.bench.scale_model` prints the figures of `docs/explanation/scale.md`; `--small` takes a second. No
server runs: it measures the records, their size in a host's memory, and how long managers take to decide.
"""

from __future__ import annotations

import argparse
import random
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from backend_store.cluster.core.values import Page, Record, Revision
from backend_store.cluster.limits import KEEP_ALIVE_SECONDS
from backend_store.core.outer.choice import choose
from backend_store.core.outer.clusters import Cluster, Report, heard
from backend_store.core.outer.relief import Load, relieve
from backend_store.core.placement.planning import plan
from backend_store.core.placement.values import Node, Shard, applied
from backend_store.metadata.directory.core.holding import Holding
from backend_store.metadata.directory.core.names import place_of, placement_key, queue_key
from backend_store.metadata.directory.limits import ARCS, BEAT_SECONDS, COPIES
from backend_store.metadata.directory.placement import Part, Placement
from backend_store.model import QueueConfig, QueueDefinition

QUEUES = 1_000_000
SAMPLE = 20_000
NODES_PER_CLUSTER = 50
COPIES_PER_SHARD = 3
SHARDS_PER_NODE = 10

encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True)
class Weight:
    """Bytes of one queue at the coordinator, and in the memory of a host that has it."""

    stored: float
    held: float


def weigh(sample: int) -> Weight:
    """Weighs definitions and placements of queues with typical names, as stored and as held in memory."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    holding = Holding()
    holding.wish(range(ARCS))
    begun = {arc: holding.reading(arc) for arc in range(ARCS)}
    records = [record for number in range(sample) for record in _records(number)]
    stored = sum(len(record.key) + len(record.value) for record in records)
    by_arc: dict[int, list[Record]] = {arc: [] for arc in range(ARCS)}
    while records:
        record = records.pop()
        place = place_of(record.key)
        assert place is not None
        by_arc[place.arc].append(record)
    for arc in list(by_arc):
        kept = by_arc.pop(arc)
        holding.read(arc, [Page(tuple(kept), Revision(1), len(kept), False)], begun[arc])
    del kept, record, records
    held = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert holding.is_everything and holding.count == 2 * sample
    return Weight(stored / sample, held / sample)


def _records(number: int) -> list[Record]:
    tenant, name = f"tenant-{number % 997}", f"orders.region-{number % 31}.customer-{number}"
    queue = QueueDefinition(number, tenant, name, QueueConfig(partitions=4), 1_700_000_000_000, 1)
    parts = tuple(Part(partition, f"cluster-{number % 20}", number % 500) for partition in range(4))
    placed = Placement(number, tenant, name, parts, 1)
    one, at = Revision(1), Revision(1)
    return [
        Record(queue_key(tenant, name), encode(queue), one, at, 1),
        Record(placement_key(number), encode(placed), one, at, 1),
    ]


def timed(do: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = do()
    return time.perf_counter() - began, result


def nodes_of(count: int) -> list[Node]:
    return [Node(f"n{number:04}", f"zone-{number % 3}") for number in range(count)]


def settled(nodes: list[Node]) -> list[Shard]:
    """Shards dealt out by hand and then balanced in as many rounds as needed: a cluster at rest."""
    by_zone = [[node.name for node in nodes if node.zone == f"zone-{zone}"] for zone in range(3)]
    shards = []
    for id in range(len(nodes) * SHARDS_PER_NODE):
        copies = tuple(names[(id + zone) % len(names)] for zone, names in enumerate(by_zone))
        shards.append(Shard(id, copies, copies[id // len(by_zone[0]) % 3]))
    for _ in range(100):
        moves = plan(nodes, shards)
        if not moves:
            return shards
        shards = applied(shards, moves)
    raise AssertionError("the cluster does not come to rest")


@dataclass(frozen=True)
class Decisions:
    """For a cluster of a given size: how long a round takes, and what it moves."""

    nodes: int
    shards: int
    quiet_s: float
    lost_s: float
    lost_moves: int
    joined_s: float


def decide(count: int) -> Decisions:
    nodes = nodes_of(count)
    shards = settled(nodes)
    quiet_s, none = timed(lambda: plan(nodes, shards))
    assert none == []
    lost = [Node(node.name, node.zone, is_alive=node is not nodes[0]) for node in nodes]
    lost_s, moves = timed(lambda: plan(lost, shards))
    joined_s, _ = timed(lambda: plan([*nodes, Node("new", "zone-0")], shards))
    return Decisions(count, len(shards), quiet_s, lost_s, len(moves), joined_s)


def report(name: str, load: float, nodes: int) -> Cluster:
    return heard(None, Report(name, 0, nodes, load / nodes))


def fill(clusters: int, seed: int = 7) -> tuple[int, float, float]:
    """Places queues of uneven load until none fits; returns their number, load in nodes, and the fullest cluster."""
    chance, load = random.Random(seed), Counter[str]()
    names = [f"cluster-{number}" for number in range(clusters)]
    placed, total = 0, 0.0
    while True:
        needs = min(0.5, chance.paretovariate(1.3) * 0.01)
        known = [report(name, load[name], NODES_PER_CLUSTER) for name in names]
        chosen = choose(known, 0, expected=needs)
        if chosen is None:
            return placed, total, max(load.values()) / NODES_PER_CLUSTER
        load[chosen] += needs  # type: ignore[assignment]
        placed, total = placed + 1, total + needs


def relief_s(clusters: int, queues: int) -> tuple[float, int]:
    """Times one round of relief over that many queues, with one cluster in ten hot."""
    loads = [Load("t", f"q{number}", f"c{number % clusters}", 0.001) for number in range(queues)]
    known = [
        report(f"c{n}", (0.9 if n % 10 == 0 else 0.5) * NODES_PER_CLUSTER, NODES_PER_CLUSTER) for n in range(clusters)
    ]
    took, moves = timed(lambda: relieve(known, loads, 0))
    return took, len(moves)


def beats(nodes: int, metadata_hosts: int) -> tuple[float, float]:
    """Keep-alives per second, which write nothing, and written heartbeats per second, at one coordinator."""
    return (nodes + metadata_hosts) / KEEP_ALIVE_SECONDS, metadata_hosts / BEAT_SECONDS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="small numbers, for a test")
    small = parser.parse_args().small
    weight = weigh(500 if small else SAMPLE)
    print(f"one queue: {weight.stored:.0f} B at the coordinator, {weight.held:.0f} B in a host's memory")
    for queues in (10_000, 100_000, QUEUES):
        whole = weight.held * queues / 1e6
        shares = ", ".join(f"{hosts} hosts {whole * min(1, COPIES / hosts):,.0f}" for hosts in (3, 6, 12))
        print(
            f"{queues:>9,} queues: stored {weight.stored * queues / 1e6:,.0f} MB; held, all {whole:,.0f}; {shares} MB"
        )
    for count in (10, 100, 1_000):
        alive, written = beats(count, 3)
        print(f"{count:>5} nodes + 3 metadata hosts: {alive:,.0f} keep-alives/s, {written:.0f} writes/s")
    for count in (6, 12) if small else (10, 100, 1_000):
        made = decide(count)
        print(
            f"{made.nodes:>5} nodes, {made.shards:>6,} shards: idle {made.quiet_s * 1e3:,.1f} ms, node lost "
            f"{made.lost_s * 1e3:,.1f} ms ({made.lost_moves} moves), node joined {made.joined_s * 1e3:,.1f} ms"
        )
    for clusters in (1, 2) if small else (1, 2, 4, 20):
        placed, total, fullest = fill(clusters)
        print(
            f"{clusters:>3} clusters of {NODES_PER_CLUSTER}: load {total:,.1f} nodes, {placed:,} queues, "
            f"fullest {fullest:.0%}"
        )
    known = [report(f"c{number}", 0.5, 1) for number in range(1_000)]
    took, _ = timed(lambda: choose(known, 0, expected=0.01))
    print(f"choosing among 1,000 clusters: {took * 1e3:.2f} ms")
    took, moves = relief_s(20, 10_000 if small else QUEUES)
    print(f"relief over {10_000 if small else QUEUES:,} queues in 20 clusters: {took * 1e3:,.0f} ms, {moves} moves")


if __name__ == "__main__":
    main()
