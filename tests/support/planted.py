"""Faults in copies of a real ledger: each queue of a copy is one log of that ledger, with one fault or none."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec

from gateway.usage.files import found, read
from gateway.usage.schema import LedgerRow
from tests.support.spark import file

UID_STEP = 1_000


class Planted(NamedTuple):
    """What an audit must report of a queue."""

    fault: str
    from_: int
    to: int
    messages: int | None


def plant(source: Path, queue: str, to: Path) -> dict[str, list[Planted]]:
    """Writes the copies; returns what must be found for each of their queues."""
    ranges = ranges_of(source, queue)
    middle = ranges[1:-1]
    assert len(middle) >= 1, f"{queue} has {len(ranges)} ranges"
    removed = middle[0]
    wide = next(rows for rows in ranges if rows[0].to - rows[0].from_ >= 2)
    settled_at, settled = next(
        (rows, row) for rows in ranges[1:] for row in rows if row.kind == "settled" and row.count > 0
    )
    late, after = next((now, then) for now, then in pairwise(ranges) if now[0].at < then[0].at)
    shorter = [msgspec.structs.replace(row, to=row.to - 1) for row in wide]
    then = later(after[0].at)
    copies: dict[str, tuple[list[LedgerRow], list[Planted]]] = {
        "whole": (flat(ranges), []),
        "removed": (
            flat([rows for rows in ranges if rows is not removed]),
            [Planted("missing", removed[0].from_, removed[0].to, None)],
        ),
        "doubled": (
            flat(ranges) + shorter,
            [Planted("doubled", wide[0].from_, wide[0].to - 1, None)],
        ),
        "disordered": (
            [msgspec.structs.replace(row, at=then) if row in late else row for row in flat(ranges)],
            [Planted("out_of_order", late[0].to, late[0].to, None)],
        ),
        "unsettled": (
            [row for row in flat(ranges) if row is not settled],
            [Planted("lost", settled_at[0].from_, settled_at[0].from_, settled.count)],
        ),
    }
    for number, (name, (rows, _)) in enumerate(copies.items(), 1):
        named = [
            msgspec.structs.replace(row, queue=f"{queue}-{name}", queue_uid=row.queue_uid + number * UID_STEP)
            for row in rows
        ]
        file(to, "ledger", number, named)
    return {f"{queue}-{name}": faults for name, (_, faults) in copies.items()}


def ranges_of(folder: Path, queue: str) -> list[list[LedgerRow]]:
    """The rows of each range in one log of a queue: the log with the most ranges."""
    logs: dict[tuple[int, str, int], dict[tuple[int, int], dict[str, LedgerRow]]] = defaultdict(dict)
    for one in found(folder):
        if one.kind == "ledger":
            for row in read(one):
                if row.queue == queue:
                    ranges = logs[row.queue_uid, row.node, row.partition]
                    ranges.setdefault((row.from_, row.to), {})[row.kind] = row
    longest = max(logs.values(), key=len)
    return [list(rows.values()) for _, rows in sorted(longest.items())]


def flat(ranges: list[list[LedgerRow]]) -> list[LedgerRow]:
    return [row for rows in ranges for row in rows]


def later(at: str) -> str:
    moved = datetime.fromisoformat(at) + timedelta(seconds=1)
    return moved.strftime("%Y-%m-%dT%H:%M:%S.000Z")
