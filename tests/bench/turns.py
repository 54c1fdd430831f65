"""Measures two alternatives in one run: they take turns, so that other load on the machine disturbs both alike.

On a shared machine a figure from one second means little, but its ratio to the adjacent second is meaningful. Several
pairs are measured, every other one in reverse order, and their median counts.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from tests.bench.machine import Meter
from tests.bench.rows import Row
from tests.bench.world import ROOT, Server, World

PAIRS = 5
LEAD_SECONDS = 0.2
"""How long a side works before it counts: messages sorted by time arrive only after a tenth of a second."""
TURNS_PER_MEASUREMENT = 4
"""A turn is this fraction of other scenarios' measurements: the two turns of a pair should be close in time."""


class Side(Protocol):
    """One of the two: it works from `begin` until `rest`, which returns when nothing is in flight any more."""

    server: Server

    @property
    def done(self) -> int:
        """Messages so far."""

    def begin(self) -> None: ...

    async def rest(self) -> None: ...

    async def finish(self) -> Row:
        """Checks that nothing was lost."""


OpenSide = Callable[[Server], Awaitable[Side]]


class Turn(NamedTuple):
    rate: float
    cpu_s_per_100k: float
    figures: dict[str, float]


async def pairs(world: World, usual: OpenSide, other: OpenSide, *, usual_tree: Path = ROOT) -> Row:
    """How much of the usual rate the other side keeps, one value per pair. Each has its own server on the same core."""
    with world.server(usual_tree) as one, world.server() as two:
        return await compare(world, await usual(one), await other(two))


async def compare(world: World, usual: Side, other: Side) -> Row:
    """Compares two sides that are already open."""
    row = await _turns(usual, other, world.scale.seconds / TURNS_PER_MEASUREMENT)
    row["rss_anon_mib"] = other.server.rss_anon_mib()
    ended = [await side.finish() for side in (usual, other)]
    return row | {what: ended[0][what] + ended[1][what] for what in ("lost", "duplicates")}


async def _turns(usual: Side, other: Side, seconds: float) -> Row:
    for side in (usual, other):
        await take_turn(side, seconds / 2)
    turns: dict[int, list[Turn]] = {id(usual): [], id(other): []}
    for number in range(PAIRS):
        for side in (usual, other) if number % 2 == 0 else (other, usual):
            turns[id(side)].append(await take_turn(side, seconds))
    first, second = turns.values()
    return {
        "rate": round(statistics.median(turn.rate for turn in second)),
        "unit": "msg/s",
        "rate_usual": round(statistics.median(turn.rate for turn in first)),
        "kept_pct": [_percent(b.rate, a.rate) for a, b in zip(first, second, strict=True)],
        "cpu_s_per_100k": statistics.median(turn.cpu_s_per_100k for turn in second),
        "cpu_s_per_100k_usual": statistics.median(turn.cpu_s_per_100k for turn in first),
        **_middle([turn.figures for turn in first + second]),
    }


async def take_turn(side: Side, seconds: float) -> Turn:
    """The rate after the lead, and the CPU time until the side is at rest, when all its work is done."""
    loop, meter, began = asyncio.get_running_loop(), Meter(side.server.process), side.done
    side.begin()
    await asyncio.sleep(LEAD_SECONDS)
    count, since = side.done, loop.time()
    await asyncio.sleep(seconds)
    rate = (side.done - count) / (loop.time() - since)
    await side.rest()
    figures = meter.figures(max(1, side.done - began))
    return Turn(rate, figures["cpu_s_per_100k"], figures)


def _percent(value: float, of: float) -> float:
    return round(100 * value / max(1.0, of), 1)


def _middle(found: list[dict[str, float]]) -> Row:
    names = ("server_cpu_pct", "generator_cpu_pct", "other_cpu_pct")
    return {name: round(statistics.median(figures[name] for figures in found), 1) for name in names}
