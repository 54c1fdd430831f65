"""Tells the story of one world, each effect on a line.

`python -m tests.simulation.replication SEED [FROM_MS] [moves] [renews]`: with `moves` replicas go from node to
node, with `renews` followers take their rows anew.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from backend_store.core.replication.effects import Append, Lead
from backend_store.core.replication.record import PartitionRecord
from tests.simulation.replication import node as nodes
from tests.simulation.replication.world import World


def tell(seed: int, from_ms: float, *, moves: bool, renews: bool) -> None:
    world = World(seed, moves=moves, renews=renews)
    print(f"mode {world.mix.mode}, {world.mix.nodes} nodes, {vars(world.mix)}")

    def say(text: str) -> None:
        if world.now >= from_ms:
            print(f"{world.now:9.1f}  {text}")

    for kind, do in list(nodes._DOES.items()):
        nodes._DOES[kind] = _told(kind, do, say)
    changed = world.checks.changed

    def change(before: PartitionRecord, after: PartitionRecord) -> None:
        say(f"record: {after}")
        changed(before, after)

    world.checks.changed = change  # type: ignore[method-assign]
    world.run()
    print("nothing is broken:", dict(world.checks.counts))


def _told(kind: type, do: Callable[..., None], say: Callable[[str], None]) -> Callable[..., None]:
    def told(node: nodes.Node, number: int, effect: Any) -> None:
        log = node.replicas[number].log
        text = f"{effect!r}"
        if kind is Append:
            text = f"Append {[(entry.offset, entry.epoch) for entry in effect.entries]}"
        sign = "***" if kind is Lead else "   "
        say(f"{sign} {node.name}/{number} [{log.start}..{log.high_watermark}..{log.end}] {text[:300]}")
        do(node, number, effect)

    return told


if __name__ == "__main__":
    given = [word for word in sys.argv[1:] if word not in ("moves", "renews")]
    tell(
        int(given[0]),
        float(given[1]) if len(given) > 1 else 0.0,
        moves="moves" in sys.argv,
        renews="renews" in sys.argv,
    )
