"""A rollup that comes in parts, in any order and with rows twice, has the sums of the rows themselves."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from gateway.usage.schema import LedgerRow, MinuteRow
from spark.jobs import usage_rollup
from tests.spark.test_jobs import history, table
from tests.support.seeds import AGAIN, SEED
from tests.support.spark import file, minute, ran

FLOWS = ("published", "settled", "expired", "held")


def sums(rows: Iterable[tuple[tuple[Any, ...], tuple[int, ...]]]) -> list[tuple[Any, ...]]:
    """Rows of a key and numbers, added up by key."""
    found: dict[tuple[Any, ...], tuple[int, ...]] = {}
    for key, numbers in rows:
        before = found.get(key, (0,) * len(numbers))
        found[key] = tuple(a + b for a, b in zip(before, numbers, strict=True))
    return sorted((*key, *numbers) for key, numbers in found.items())


def used(minutes: list[MinuteRow]) -> list[tuple[tuple[Any, ...], tuple[int, ...]]]:
    """What each row of minutes adds to an hour."""
    return [
        (
            (row.minute[:10], row.tenant, int(row.minute[11:13]), row.operation),
            (row.requests, row.messages, row.latency_counts[0], row.latency_counts[3]),
        )
        for row in minutes
    ]


def flows(ledger: list[LedgerRow]) -> list[tuple[Any, ...]]:
    """Each range, with its numbers."""
    ranges: dict[tuple[Any, ...], dict[str, int]] = defaultdict(dict)
    for row in ledger:
        ranges[row.at[:10], row.queue, row.from_, row.to][row.kind] = row.count
    return sorted((*key, *(counts.get(kind, 0) for kind in FLOWS)) for key, counts in ranges.items())


def test_parts_in_any_order_with_repeats_add_up_to_the_whole(session: SparkSession, tmp_path: Path) -> None:
    dice = random.Random(SEED)
    ledger = history(SEED)
    minutes = [minute(dice.randrange(1500), dice.choice(["publish", "ack"]), dice.choice("ab"), n) for n in range(40)]
    dice.shuffle(minutes)
    repeated = ledger + dice.sample(ledger, 10)
    dice.shuffle(repeated)
    source, to = tmp_path / "files", tmp_path / "tables"
    for number in range(3):  # the files of the last two come in one run, the later one first
        file(source, "minutes", 9 - number, minutes[number::3])
        file(source, "ledger", 9 - number, repeated[number::3])
        if number != 1:
            ran(session, usage_rollup, source, to)
    day = "cast(day as string)"
    hours = table(
        session,
        to,
        "usage_hours",
        day,
        "tenant",
        "hour(hour)",
        "operation",
        "requests",
        "messages",
        "latency_0",
        "latency_3",
    )
    assert hours == sums(used(minutes)), AGAIN
    days = table(session, to, "usage_days", day, "tenant", "operation", "requests", "messages", "p95_seconds")
    by_day = sums(((key[0], key[1], key[3]), numbers[:2]) for key, numbers in used(minutes))
    assert days == [(*row, 0.1) for row in by_day], AGAIN
    ranges = table(session, to, "flows", day, "queue", "`from`", "to", *FLOWS)
    assert ranges == flows(ledger), AGAIN
    bill = table(session, to, "bill", day, "queue", "published", "delivered", "expired")
    assert bill == sums(((row[0], row[1]), row[4:7]) for row in flows(ledger)), AGAIN
