"""What a setting costs: a queue with it and one without take turns with the same messages."""

from __future__ import annotations

from tests.bench.feeds import clocked, hot, identified, keyed, numbered, prioritised
from tests.bench.rows import Row
from tests.bench.scale import WINDOW_WIDE
from tests.bench.scenario_hot import HotSide
from tests.bench.sides import PublishSide, Way
from tests.bench.turns import pairs
from tests.bench.world import Server, World, until

KEYS = 1_000
PRIORITIES = 3
SORT_WINDOW_MS = 100
SORTED_AHEAD_MAX = 40_000
"""Messages in flight while each waits for the sort window: at 200,000 per second, 20,000 of them."""
FILL_SECONDS_MAX = 120.0
DEDUPE_WINDOW_MS = 14 * 24 * 3_600_000


async def strict(world: World, *, lease_mode: str) -> Row:
    """Strict order compared with best effort, for the same messages with keys."""
    config = {"ordering": "strict", "lease_mode": lease_mode}
    usual, ordered = (Way(config=given, feed=lambda: keyed(KEYS)) for given in ({}, config))
    return await pairs(world, usual.work, ordered.work)


async def strict_hot(world: World) -> Row:
    """Half of all messages have one key, whose consumer never finishes its first; measures the other keys."""

    async def spread(server: Server) -> HotSide:
        return await HotSide.open(server, hot(KEYS, is_one_key=False), holds=False)

    async def held(server: Server) -> HotSide:
        return await HotSide.open(server, hot(KEYS, is_one_key=True), holds=True)

    return await pairs(world, spread, held)


async def priority(world: World) -> Row:
    feed = lambda: prioritised(PRIORITIES)  # noqa: E731
    return await pairs(world, Way().work, Way(config={"priorities": PRIORITIES}, feed=feed).work)


async def sorted_by(world: World, *, sequencing: str) -> Row:
    """Sorted by the producer's numbers or by clocks, compared with the same messages unsorted."""
    feed = (lambda: numbered("p")) if sequencing == "producer" else (lambda: clocked())
    config = {"sequencing": sequencing, "sort_window_ms": SORT_WINDOW_MS}
    usual = Way(feed=feed, ahead_max=SORTED_AHEAD_MAX)
    other = Way(config=config, feed=feed, ahead_max=SORTED_AHEAD_MAX)
    return await pairs(world, usual.work, other.work)


async def dedupe(world: World) -> Row:
    """Publishes with ids, compared with a queue that remembers none; both have stored as many messages before."""
    wanted = 2 * world.scale.backlog

    async def filled(server: Server, way: Way) -> PublishSide:
        side = await way.publish(server)
        side.begin(WINDOW_WIDE)
        await until(
            lambda: side.done >= wanted,
            [side.publisher],
            lambda: f"{side.done} of {wanted} stored",
            seconds_max=FILL_SECONDS_MAX,
        )
        await side.rest()
        return side

    config = {"dedupe": "id", "dedupe_window_ms": DEDUPE_WINDOW_MS}
    usual, other = Way(feed=identified), Way(config=config, feed=identified)
    return await pairs(world, lambda server: filled(server, usual), lambda server: filled(server, other))
