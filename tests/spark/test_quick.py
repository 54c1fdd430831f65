"""Sums that are made where a file is read are those of Spark, and a file with anything odd in it is left to Spark."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from gateway.usage.schema import LedgerRow
from spark.columns import SUMS, Odd, sums_of
from spark.jobs import delivery_audit, quick
from spark.jobs.reading import Rows, usage_files
from spark.transforms import audit, screen
from spark.usage_schema import LEDGER_FLOWS
from tests.spark.test_jobs import history, total
from tests.support.seeds import AGAIN, SEED
from tests.support.spark import file, ran, stamp

ROW = {
    "version": 1, "node": "n", "tenant": "a", "queue": "q", "queue_uid": 1, "partition": 0, "epoch": 1,
    "kind": "published", "from": 0, "to": 9, "count": 4, "bytes": None, "at": "2026-11-20T22:00:00.000Z",
}  # fmt: skip


def lines(*rows: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def anything(count: int) -> list[LedgerRow]:
    """Rows of all kinds, in no order, that say nothing sensible together; sums of them fit a number."""
    dice, kinds = random.Random(SEED), [*LEDGER_FLOWS]
    rows = []
    for _ in range(count):
        start = dice.choice([0, 1, 255, dice.randrange(2**20), dice.randrange(2**40)])
        rows.append(
            LedgerRow(
                1,
                dice.choice(["node-1", "nöde 2"]),
                dice.choice("ab"),
                dice.choice(["q", 'a "quoted" \\ one', "ü/€"]),
                dice.randrange(3),
                dice.randrange(2),
                dice.randrange(3),
                dice.choice(kinds),
                start,
                start + dice.choice([1, 2, 1000, dice.randrange(1, 2**20)]),
                dice.choice([0, 1, dice.randrange(2**30)]),
                dice.choice([None, 7]),
                stamp(dice.randrange(300)),
            )
        )
    return rows


def told(sums: DataFrame) -> list[str]:
    names = ["file", "day", *SUMS.names]
    return sorted(str(row) for row in sums.select(*names).collect())


def test_sums_by_columns_are_those_of_spark(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one piece or in several: an hour may come in parts, which add up."""
    source = tmp_path / "files"
    file(source, "ledger", 1, anything(1500))
    file(source, "ledger", 2, history(SEED))
    file(source, "ledger", 3, [])
    files = usage_files(source, "ledger")
    rows = Rows(session, files, "ledger", audit.COLUMNS)
    theirs = screen.sums_of(rows.good(times_as_text=True, with_files=True))
    whole = quick.sums_of(session, files)
    assert (whole.rows, whole.odd) == (1500 + len(history(SEED)), [])
    assert told(screen.with_day(whole.frame)) == told(theirs), AGAIN
    sizes = [path.stat().st_size for path in files]
    for most, tasks in ((sizes[0], 2), (sum(sizes), 1), (1, 3)):
        monkeypatch.setattr(quick, "TASK_BYTES", most)
        shares = [one.value for one in quick.SumsReader([str(path) for path in files], SUMS).partitions()]
        assert len(shares) == tasks and [*chain(*shares)] == [str(path) for path in files]
    monkeypatch.setattr(quick, "PIECE_BYTES", 4096)
    assert len([*quick.pieces(files[0])]) > 10
    assert b"".join(quick.pieces(files[0])) == gzip.decompress(files[0].read_bytes())


@pytest.mark.parametrize(
    "odd",
    [
        lambda: lines({**ROW, "count": -1}),
        lambda: lines({**ROW, "count": 4.0}),
        lambda: lines({**ROW, "count": "4"}),
        lambda: lines({**ROW, "count": 2**63}),
        lambda: lines({**ROW, "count": 2**60}),
        lambda: lines({**ROW, "to": 0}),
        lambda: lines({**ROW, "kind": "lent"}),
        lambda: lines({**ROW, "queue": None}),
        lambda: lines({**ROW, "queue": 5}),
        lambda: lines({name: value for name, value in ROW.items() if name != "epoch"}),
        lambda: lines({**ROW, "at": "yesterday"}),
        lambda: lines({**ROW, "at": "2026-02-30T22:00:00.000Z"}),
        lambda: lines(ROW) + b"\n",
        lambda: lines(ROW) + b"null\n",
        lambda: lines(ROW) + b"[]\n",
        lambda: lines(ROW) + b"{\n",
        lambda: lines(ROW).replace(b'"q"', b'"\xff"'),
        lambda: lines(ROW)[:-2] + b',"count":5}\n',
        lambda: lines(ROW) * 2 + lines(ROW)[:-1] + lines(ROW),
    ],
)  # fmt: skip
def test_what_only_a_look_at_each_row_can_judge_is_odd(odd: Callable[[], bytes]) -> None:
    assert len(sums_of(lines(ROW))) == len(sums_of(lines({**ROW, "new": {"a": [1]}}))) == 1
    with pytest.raises(Odd):
        sums_of(odd())


@pytest.mark.parametrize("how", ["cut off", "no gzip", "no last line", "one long line"])
def test_a_file_that_is_not_whole_is_odd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setattr(quick, "PIECE_BYTES", 1000)
    path = file(tmp_path / "files", "ledger", 1, history())
    whole = path.read_bytes()
    written = {
        "cut off": whole[:-20],
        "no gzip": b"x" * 50,
        "no last line": gzip.compress(gzip.decompress(whole)[:-1]),
        "one long line": gzip.compress(b"x" * 3000 + b"\n"),
    }
    path.write_bytes(written[how])
    with pytest.raises(Odd):
        for _ in quick.pieces(path):
            pass


def test_a_bad_row_is_set_aside_and_the_rest_of_its_file_counts(session: SparkSession, tmp_path: Path) -> None:
    rows, source = history(), tmp_path / "files"
    half = len(rows) // 2 // 4 * 4
    file(source, "ledger", 1, rows[:half])
    path = file(source, "ledger", 2, rows[half:])
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()) + lines({**ROW, "kind": "lent"})))
    done = ran(session, delivery_audit, source, tmp_path / "tables", "--screen", "always")
    assert (done["rows"], done["quarantined"], done["faults"]) == (len(rows) + 1, 1, 0)
    assert done["published"] == total(rows, "published")
    [bad] = session.read.parquet(str(tmp_path / "tables" / "quarantine")).collect()
    assert (bad["reason"], bad["source"]) == ("kind is unknown", path.name)
