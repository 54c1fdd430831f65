"""The bill against a computation of its own, over the same files in plain Python: however they were split, in whatever
order they came and what they repeated, and wherever a run was killed."""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from gateway.usage.collect import collect
from gateway.usage.files import packed, write_durably
from gateway.usage.schema import LedgerRow, MinuteRow
from spark.jobs import usage_rollup
from spark.jobs.tables import Tables
from tests.support.seeds import AGAIN, SEED
from tests.support.spark import minute, ran

NIGHTS = ("2024-02-28T23:59", "2024-02-29T00:00", "2024-02-29T23:59", "2026-03-29T00:59", "2026-03-29T02:00")
"""Around a leap day, and an hour that some zones do not have."""
NAMES = ("007", "a.b-c_d", "Acme", "acme", "null")
PLACES = ("node-1", "node-2")
RUNS = 3


class Killed(BaseException):
    """The process is gone."""


def ledger(dice: random.Random) -> list[LedgerRow]:
    """Ranges of queues, some of which have a name after another one, in a copy of the data and in one that was restored
    from its backup: there the same offsets are about other messages."""
    rows: list[LedgerRow] = []
    for node in PLACES:
        for uid in (1, 2, 3):
            tenant, queue = NAMES[uid], ("orders", "orders", "ü 'quoted' \"too\"")[uid - 1]
            for n, night in enumerate(sorted(NIGHTS)):
                kinds = {"published": dice.randrange(2**40), "held": dice.randrange(9)}
                kinds |= {
                    kind: dice.randrange(99) for kind in dice.sample(("settled", "read", "expired", "opening"), 2)
                }
                at = f"{night}:{dice.randrange(60):02}.{dice.randrange(1000):03}Z"
                for kind, count in kinds.items():
                    size = count * 100 if kind in ("published", "held") else None
                    place = (node, tenant, queue, uid, 0, 1)
                    rows.append(LedgerRow(1, *place, kind, n * 10, n * 10 + 10, count, size, at))
    return rows


def minutes(dice: random.Random) -> list[MinuteRow]:
    return [
        msgspec.structs.replace(
            minute(0, dice.choice(("publish", "start")), dice.choice(NAMES), dice.randrange(9)),
            minute=f"{dice.choice(NIGHTS)}:00.000Z",
            principal=dice.choice(("key", "ключ/1\n")),
        )
        for _ in range(60)
    ]


def lines(folder: Path, kind: str) -> Iterator[dict[str, Any]]:
    for path in folder.glob(f"{kind}-*.ndjson.gz"):
        yield from map(json.loads, gzip.decompress(path.read_bytes()).splitlines())


def billed(folder: Path) -> dict[tuple[str, ...], tuple[int, ...]]:
    once = {
        tuple(row[k] for k in ("node", "queue_uid", "partition", "kind", "from", "to")): row
        for row in lines(folder, "ledger")
    }
    sums: dict[tuple[str, ...], Counter[str]] = {}
    for row in once.values():
        counts = sums.setdefault((row["at"][:10], row["tenant"], row["queue"], str(row["queue_uid"])), Counter())
        counts[row["kind"]] += row["count"]
        counts["bytes"] += row["bytes"] if row["kind"] == "published" else 0
    return {
        key: (counts["published"], counts["bytes"], counts["settled"] + counts["read"], counts["expired"])
        for key, counts in sums.items()
    }


def used(folder: Path) -> Counter[tuple[str, ...]]:
    found: Counter[tuple[str, ...]] = Counter()
    for row in lines(folder, "minutes"):
        if row["operation"] != "start":
            found[row["minute"][:13], row["tenant"], row["principal"]] += row["messages"]
    return found


def dealt(dice: random.Random, folder: Path, rows: list[Any], kind: str) -> None:
    """Into files of any size, in no order."""
    dice.shuffle(rows)
    cuts = sorted({0, len(rows), *(dice.randrange(len(rows)) for _ in range(5))})
    for number, (start, end) in enumerate(pairwise(cuts), 1):
        name = f"{kind}-{dice.choice(PLACES)}-20260329T020000000Z-{number:08d}.ndjson.gz"
        write_durably(folder / name, packed(rows[start:end]))


def test_a_bill_is_that_of_the_files_however_they_came_and_wherever_a_run_was_killed(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(SEED)
    first, again, source, to = (tmp_path / name for name in ("first", "again", "files", "tables"))
    first.mkdir()
    again.mkdir()
    rows = ledger(dice)
    dealt(dice, first, [*rows, *dice.sample(rows, 9)], "ledger")
    dealt(dice, first, minutes(dice), "minutes")
    # A server that was killed wrote some of its files again, with more in them.
    for path in dice.sample(sorted(first.glob("ledger-*")), 2):
        write_durably(again / path.name, packed([*dice.sample(rows, 5)]))
    files = sorted([*first.iterdir(), *again.iterdir()])
    dice.shuffle(files)
    rename = Path.rename
    for number in range(RUNS):
        part = tmp_path / f"part-{number}"
        for path in files[number::RUNS]:
            folder = part / path.parent.name
            folder.mkdir(parents=True, exist_ok=True)
            path.rename(folder / path.name)
        for _ in range(2):
            collect(source, sorted(part.iterdir()))
        left = dice.randrange(9)

        def dies(path: Path, target: Path) -> Path:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            return rename(path, target)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", dies)
            with suppress(Killed):  # a run with little to move may come to its end
                ran(session, usage_rollup, source, to)
    ran(session, usage_rollup, source, to)
    tables = Tables(session, to)
    bill, hours = tables.read("bill"), tables.read("usage_hours")
    assert bill is not None and hours is not None
    keys = ("day", "tenant", "queue", "queue_uid")
    sums = ("published", "published_bytes", "delivered", "expired")
    rows_of = {tuple(str(row[k]) for k in keys): tuple(row[k] for k in sums) for row in bill.collect()}
    assert rows_of == billed(source), AGAIN
    told = hours.selectExpr(
        "date_format(hour, \"yyyy-MM-dd'T'HH\") as hour", "tenant", "principal", "messages"
    ).collect()
    counted: Counter[tuple[str, ...]] = Counter()
    for row in told:
        counted[row["hour"], row["tenant"], row["principal"]] += row["messages"]
    assert {**counted} == {**used(source)}, AGAIN
    assert not (to / "quarantine").exists()
