"""Audits of small ledgers: each fault that was planted is found, in one run or in several, with late files."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from gateway.usage.schema import LedgerRow
from spark.jobs import delivery_audit
from spark.jobs.reading import BadFolder
from tests.spark.test_jobs import history, table, total
from tests.support.seeds import AGAIN, SEED
from tests.support.spark import file, ran, stamp

DAY = 24 * 60


def changed(rows: list[LedgerRow], at: int, **values: Any) -> list[LedgerRow]:
    return [msgspec.structs.replace(row, **values) if n == at else row for n, row in enumerate(rows)]


def rows_of(rows: list[LedgerRow], queue: str, n: int) -> list[LedgerRow]:
    """The rows of a queue's range."""
    at = sorted({row.from_ for row in rows if row.queue == queue})[n]
    return [row for row in rows if row.queue == queue and row.from_ == at]


def index(rows: list[LedgerRow], queue: str, n: int, kind: str) -> int:
    (row,) = (row for row in rows_of(rows, queue, n) if row.kind == kind)
    return rows.index(row)


def planted() -> tuple[list[LedgerRow], dict[str, set[str]]]:
    """A history with one fault in each queue but the first two, and what an audit must say of it."""
    rows = history(logs=9)
    # q0 is whole; of q1 a crash repeated rows.
    rows += rows_of(rows, "q1", 3) + rows_of(rows, "q1", 4)
    # A range of q2 is missing.
    gone = rows_of(rows, "q2", 4)
    rows = [row for row in rows if row not in gone]
    # Of q3 less is there than should be, and then more.
    at = index(rows, "q3", 5, "held")
    rows = changed(rows, at, count=rows[at].count + 4)
    # q4 says itself that messages were lost.
    rows.append(msgspec.structs.replace(rows_of(rows, "q4", 11)[-1], kind="lost", count=2))
    # Two ranges of q5 are about the same offsets.
    rows += [msgspec.structs.replace(row, to=row.to + 3) for row in rows_of(rows, "q5", 3)]
    # A repeated row of q6 differs, and one of q7 is not there.
    rows.append(msgspec.structs.replace(rows_of(rows, "q6", 2)[0], count=77))
    del rows[index(rows, "q7", 6, "published")]
    # Of q8 an earlier range was closed later.
    late = rows_of(rows, "q8", 2)
    rows = [msgspec.structs.replace(row, at=stamp(9_000)) if row in late else row for row in rows]
    balance = {"lost", "appeared"}
    return rows, {
        "q2": {"missing"},
        "q3": balance,
        "q4": balance,
        "q5": {"doubled", *balance},
        "q6": {"at_odds", *balance},
        "q7": {"incomplete", *balance},
        "q8": {"out_of_order"},
    }


def audited(session: SparkSession, to: Path) -> tuple[list[Any], list[Any]]:
    """What an audit says of queues, and its faults."""
    queues = table(session, to, "audit_queues", "*")
    return queues, [tuple(map(str, row)) for row in table(session, to, "audit_faults", "struct(*)")]


def files(folder: Path, rows: list[LedgerRow], count: int) -> list[Path]:
    """The rows, dealt out to files by turns."""
    return [file(folder, "ledger", number, rows[number::count]) for number in range(count)]


def given(folder: Path, parts: Sequence[Path]) -> None:
    """Puts files where an audit looks."""
    folder.mkdir(exist_ok=True)
    for path in parts:
        shutil.copy(path, folder)


@pytest.mark.parametrize("runs", [1, 3])
def test_an_audit_finds_each_fault_that_was_planted_and_no_other(
    session: SparkSession, tmp_path: Path, runs: int
) -> None:
    rows, expected = planted()
    dice = random.Random(SEED)
    dice.shuffle(rows)
    parts = files(tmp_path / "all", rows, 8)
    whole, dealt = tmp_path / "whole", tmp_path / "dealt"
    done = ran(session, delivery_audit, tmp_path / "all", whole, "--screen", "never")
    assert (done["quarantined"], done["rows"], done["files"]) == (0, len(rows), len(parts))
    faults: dict[str, set[str]] = {}
    for fault in done["first_faults"]:
        faults.setdefault(fault["queue"], set()).add(fault["fault"])
    assert faults.keys() == expected.keys()
    assert all(faults[queue] <= expected[queue] for queue in faults)
    assert all(min(expected[queue] - {"lost", "appeared"}, default=None) in {*faults[queue], None} for queue in faults)
    whole_rows = [row for row in history(logs=9) if row.queue in ("q0", "q1")]
    columns = ("queue", "published", "outstanding", "is_accounted")
    for queue, published, outstanding, is_accounted in table(session, whole, "audit_queues", *columns)[:2]:
        mine = [row for row in whole_rows if row.queue == queue]
        assert (published, outstanding, is_accounted) == (total(mine, "published"), mine[-1].count, True)
    if runs == 1:
        return
    # The same in several runs, each with files that are late for days of the one before, and screened.
    cut = dice.randint(1, len(parts) - 1)
    dice.shuffle(parts)
    for some in (parts[:cut], parts[cut:], []):
        given(tmp_path / "given", some)
        told = ran(session, delivery_audit, tmp_path / "given", dealt, "--screen", "always")
        assert told["files"] == len(some)
    for name in ("faults", "lost", "published", "settled", "outstanding", "first_faults"):
        assert told[name] == done[name], AGAIN
    assert audited(session, dealt) == audited(session, whole), AGAIN


def test_files_that_were_audited_are_read_again_where_sums_do_not_vouch_for_a_day_and_nowhere_else(
    session: SparkSession, tmp_path: Path
) -> None:
    source, aside, to = tmp_path / "files", tmp_path / "aside", tmp_path / "tables"
    rows = history(logs=2, ranges=6, minutes_apart=8 * 60)  # three a day
    first, second = ([row for row in rows if (row.at < stamp(DAY)) == is_first] for is_first in (True, False))
    audit = (session, delivery_audit, source, to, "--screen", "always")
    old = file(source, "ledger", 1, first)
    ran(*audit)
    aside.mkdir()
    old.rename(aside / old.name)
    file(source, "ledger", 2, second[: len(second) // 2])
    file(source, "ledger", 3, second[len(second) // 2 :])
    done = ran(*audit)
    assert (done["files"], done["faults"], done["published"]) == (2, 0, total(rows, "published"))
    assert min(done["days"]) > first[0].at[:10]
    # A crash repeated rows: sums over the day are not those of its ranges, so its file is asked for.
    repeated = file(source, "ledger", 4, first[-3:])
    with pytest.raises(BadFolder, match=f"1 audited file .*{old.name}.*put it back"):
        ran(*audit)
    # Whoever wants to see all ranges does, though no file is new.
    (aside / old.name).rename(old)
    repeated.unlink()
    done = ran(session, delivery_audit, source, to, "--screen", "never")
    assert (done["files"], done["faults"], done["published"]) == (0, 0, total(rows, "published"))
    assert not list((to / "audit_hours").glob("day=*"))
    ranges = table(session, to, "audit_ranges", "queue", "`from`", "published")
    assert len(ranges) == len({(row.queue, row.from_) for row in rows})
    assert sum(row[2] or 0 for row in ranges) == total(rows, "published")


def test_rows_that_files_repeat_twice_count_once_where_a_queue_was_empty_before_and_behind(
    session: SparkSession, tmp_path: Path
) -> None:
    """Of three equal rows the ends cancel out as of one, and so does what is there where nothing is there."""
    ranges = [row for row in history(logs=1, ranges=6, minutes_apart=5) if row.kind == "published"]
    counts = {"published": 5, "settled": 5, "held": 0}
    rows = [msgspec.structs.replace(row, kind=kind, count=count) for row in ranges for kind, count in counts.items()]
    for number in (1, 2, 3):
        file(tmp_path / "files", "ledger", number, rows)
    done = ran(session, delivery_audit, tmp_path / "files", tmp_path / "tables", "--screen", "always")
    assert (done["faults"], done["published"], done["settled"]) == (0, 6 * 5, 6 * 5)


def test_a_queue_that_came_back_to_a_cluster_goes_on_at_the_floor_of_a_place(
    session: SparkSession, tmp_path: Path
) -> None:
    """It left with nothing. Another stretch that nobody tells of is missing: also before a floor where something was
    left, and where nothing was, but the next number is none."""
    rows = []
    for queue, held, floor in (("back", 0, 2 << 32), ("left", 3, 2 << 32), ("gap", 0, (2 << 32) + 10)):
        for n, (start, before) in enumerate(((0, 0), (floor, 0))):
            counts = {"published": 5, "settled": 5 - (held if n == 0 else 0), "held": held if n == 0 else before}
            rows += [
                LedgerRow(1, "node-1", "a", queue, 1, 0, 1, kind, start, start + 5, count, None, stamp(n * DAY))
                for kind, count in counts.items()
            ]
    file(tmp_path / "files", "ledger", 1, rows)
    done = ran(session, delivery_audit, tmp_path / "files", tmp_path / "tables", "--screen", "never")
    faults = {(fault["queue"], fault["fault"]) for fault in done["first_faults"]}
    assert faults == {("left", "missing"), ("gap", "missing")}
