"""Two ways of doing the same in one run: they take turns, so that a neighbour on the machine disturbs both alike.

A figure of one second is worth little on a shared machine, but the ratio to the second beside it is. Several pairs are
measured, every other one in the opposite order, and their median counts.
"""

from __future__ import annotations

import asyncio
import statistics
from typing import NamedTuple, Protocol

from tests.bench.machine import Meter
from tests.bench.rows import Row
from tests.bench.world import Server

PAIRS = 5


class Side(Protocol):
    """One of the two: it works from `begin` until `rest`, which returns when nothing is on its way any more."""

    server: Server

    @property
    def done(self) -> int:
        """Messages so far."""

    def begin(self) -> None: ...

    async def rest(self) -> None: ...


class Turn(NamedTuple):
    rate: float
    cpu_s_per_100k: float
    figures: dict[str, float]


async def take_turn(side: Side, seconds: float) -> Turn:
    """The rate of the time that it had; the processor time until it rested, which is when all its work was done."""
    meter, began = Meter(side.server.process), side.done
    side.begin()
    await asyncio.sleep(seconds)
    done, wall_s = side.done - began, meter.figures()["wall_s"]
    await side.rest()
    figures = meter.figures(max(1, side.done - began))
    return Turn(done / wall_s, figures["cpu_s_per_100k"], figures)


async def compare(usual: Side, other: Side, seconds: float, *, pairs: int = PAIRS) -> Row:
    """How much of the usual rate the other keeps, a value a pair. Each side warms up once."""
    for side in (usual, other):
        await take_turn(side, seconds / 2)
    first: list[Turn] = []
    second: list[Turn] = []
    for number in range(pairs):
        for side in (usual, other) if number % 2 == 0 else (other, usual):
            (first if side is usual else second).append(await take_turn(side, seconds))
    return {
        "rate": round(statistics.median(turn.rate for turn in second)),
        "unit": "msg/s",
        "rate_usual": round(statistics.median(turn.rate for turn in first)),
        "kept_pct": [round(100 * b.rate / a.rate, 1) for a, b in zip(first, second, strict=True)],
        "cpu_kept_pct": [
            round(100 * a.cpu_s_per_100k / b.cpu_s_per_100k, 1) if b.cpu_s_per_100k else None
            for a, b in zip(first, second, strict=True)
        ],
        "cpu_s_per_100k": statistics.median(turn.cpu_s_per_100k for turn in second),
        **_middle([turn.figures for turn in first + second]),
    }


def _middle(found: list[dict[str, float]]) -> Row:
    names = ("server_cpu_pct", "generator_cpu_pct", "other_cpu_pct")
    return {name: round(statistics.median(figures[name] for figures in found), 1) for name in names}
