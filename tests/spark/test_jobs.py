"""Jobs over small files whose right answers are known, in a real local Spark."""

from __future__ import annotations

import gzip
import random
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import SparkSession

from gateway.usage.schema import LedgerRow
from spark.jobs import delivery_audit, usage_rollup
from tests.support.spark import file, minute, ran, stamp


def history(seed: int = 1, logs: int = 3, ranges: int = 12, minutes_apart: int = 25) -> list[LedgerRow]:
    """Ranges of some partitions, that add up."""
    dice = random.Random(seed)
    rows: list[LedgerRow] = []
    for log in range(logs):
        held = offset = 0
        for n in range(ranges):
            published, end = dice.randint(0, 9), offset + dice.randint(10, 20)
            settled = dice.randint(0, held + published)
            expired = dice.randint(0, held + published - settled)
            held += published - settled - expired
            counts = {"published": published, "settled": settled, "expired": expired, "held": held}
            rows += [
                LedgerRow(
                    1, "node-1", "a", f"q{log}", log + 1, 0, 1, kind, offset, end, count, None, stamp(n * minutes_apart)
                )
                for kind, count in counts.items()
                if count or kind in ("published", "held")
            ]
            offset = end
    return rows


def table(session: SparkSession, to: Path, name: str, *columns: str) -> list[tuple[Any, ...]]:
    found = session.read.option("basePath", str(to / name)).parquet(str(to / name)).selectExpr(*columns)
    return sorted(tuple(row) for row in found.collect())


def total(rows: list[LedgerRow], kind: str) -> int:
    return sum(row.count for row in rows if row.kind == kind)


def test_a_rollup_counts_hours_days_and_the_bill_and_each_file_once(session: SparkSession, tmp_path: Path) -> None:
    source, to = tmp_path / "files", tmp_path / "tables"
    ledger = history()
    file(source, "minutes", 1, [minute(0), minute(1), minute(61, "ack"), minute(119)])
    file(source, "ledger", 1, ledger[: len(ledger) // 2])
    first = ran(session, usage_rollup, source, to)
    assert first["files"] == 2 and first["quarantined"] == 0 and "2026-11-20" in first["days"]
    assert ran(session, usage_rollup, source, to)["files"] == 0
    # A late file for both days, with rows that the first one had: of the ledger they count once.
    file(source, "minutes", 2, [minute(2), minute(130), minute(131, tenant="b")])
    file(source, "ledger", 2, ledger[len(ledger) // 2 - 6 :])
    assert ran(session, usage_rollup, source, to)["files"] == 2
    hours = table(session, to, "usage_hours", "hour(hour)", "tenant", "operation", "messages", "requests")
    assert hours == [
        (0, "a", "publish", 3, 2),
        (0, "b", "publish", 3, 2),
        (22, "a", "publish", 9, 6),
        (23, "a", "ack", 3, 2),
        (23, "a", "publish", 3, 2),
    ]
    days = table(session, to, "usage_days", "day", "tenant", "operation", "messages", "p50_seconds", "p99_seconds")
    assert [(str(row[0]), *row[1:]) for row in days] == [
        ("2026-11-20", "a", "ack", 3, 0.001, 0.1),
        ("2026-11-20", "a", "publish", 12, 0.001, 0.1),
        ("2026-11-21", "a", "publish", 3, 0.001, 0.1),
        ("2026-11-21", "b", "publish", 3, 0.001, 0.1),
    ]
    bill = table(session, to, "bill", "published", "delivered", "expired")
    assert tuple(map(sum, zip(*bill, strict=True))) == tuple(
        total(ledger, k) for k in ("published", "settled", "expired")
    )


def test_a_run_that_died_after_its_journal_is_gone_on_with(session: SparkSession, tmp_path: Path) -> None:
    source, to = tmp_path / "files", tmp_path / "tables"
    file(source, "minutes", 1, [minute(0)])
    ran(session, usage_rollup, source, to)
    # The moment after the journal: the new days are still aside.
    aside = to / "_aside" / "x" / "usage_hours"
    aside.mkdir(parents=True)
    (to / "usage_hours" / "day=2026-11-20").rename(aside / "day=2026-11-20")
    (to / "_files.json").rename(to / "files.before")
    names = [path.name for path in source.iterdir()]
    (to / "_journal.json").write_bytes(msgspec.json.encode({"aside": "_aside/x", "files": names}))
    (to / "files.before").unlink()
    assert ran(session, usage_rollup, source, to)["files"] == 0
    assert table(session, to, "usage_hours", "messages") == [(3,)] and not (to / "_aside").exists()


def test_bad_rows_are_counted_and_kept_with_their_reason(session: SparkSession, tmp_path: Path) -> None:
    source, to = tmp_path / "files", tmp_path / "tables"
    path = file(source, "minutes", 1, [minute(0), minute(1, messages=-1), minute(2, requests=4)])
    lines = (
        gzip.decompress(path.read_bytes()) + b'{"version":1,"node":"n"}\n{"version":1,"requests":"many"}\nnot json\n'
    )
    lines += msgspec.json.encode(minute(3)).replace(b'"lossy"', b'"of_version_2":7,"lossy"') + b"\n"
    path.write_bytes(gzip.compress(lines))
    done = ran(session, usage_rollup, source, to)
    assert (done["rows"], done["quarantined"]) == (7, 4)
    found = table(session, to, "quarantine", "reason", "kind", "source")
    assert [row[0] for row in found] == [
        "messages is negative",
        "minute is missing",
        "not a row of this kind",
        "not a row of this kind",
    ]
    assert {row[1:] for row in found} == {("minutes", path.name)}
    assert table(session, to, "usage_hours", "messages") == [(9,)]


def test_what_a_rollup_set_aside_stays_when_an_audit_that_reads_less_of_a_row_looks_at_the_file(
    session: SparkSession, tmp_path: Path
) -> None:
    source, to = tmp_path / "files", tmp_path / "tables"
    rows = history(logs=1, ranges=3)
    odd = [msgspec.structs.replace(rows[0], bytes=-5), msgspec.structs.replace(rows[1], count=-1)]
    file(source, "ledger", 1, [*rows, *odd])
    assert ran(session, usage_rollup, source, to)["quarantined"] == 2
    assert ran(session, delivery_audit, source, to)["quarantined"] == 1
    assert table(session, to, "quarantine", "reason") == [("bytes is negative",), ("count is negative",)]


def test_lines_that_are_no_row_are_counted_and_kept_or_neither(session: SparkSession, tmp_path: Path) -> None:
    """Bytes that are no text are kept with their line, whatever it says else; a line that holds nothing is no row."""
    source, to = tmp_path / "files", tmp_path / "tables"
    path = file(source, "minutes", 1, [minute(0)])
    good = gzip.decompress(path.read_bytes())
    broken = [
        good.replace(b'"node-1"', b'"node-\xff\xfe"'),
        good.replace(b'"node-1"', b'"node-\xff"').replace(b'"messages":3', b'"messages":-3'),
        b"\xc3(\n",
        b'{"version":1,\n',
        b"null\n",
    ]
    less = good.replace(b'"messages":3', b'"messages":-3')
    lists = [b"[" + less.strip() + b"]\n", b"[" + less.strip() + b"," + less.strip() + b"]\n"]
    nothing = [b"\n", b"   \n", b"[]\n"]
    path.write_bytes(gzip.compress(b"".join([good, *broken, *lists, *nothing])))
    done = ran(session, usage_rollup, source, to)
    found = table(session, to, "quarantine", "reason", "line is not null")
    assert (done["rows"], done["quarantined"]) == (1 + len(found), len(found)), found
    assert found == [("messages is negative", True)] * 3 + [("not a row of this kind", True)] * len(broken)
    assert table(session, to, "usage_hours", "messages") == [(3,)]


def test_numbers_that_no_server_writes_are_set_aside_and_the_rest_is_counted(
    session: SparkSession, tmp_path: Path
) -> None:
    """One of them would make sums that fit no number, and none of its table."""
    source, to = tmp_path / "files", tmp_path / "tables"
    path = file(source, "minutes", 1, [minute(0)])
    good = gzip.decompress(path.read_bytes())
    changes = {
        b'"seconds":0.5': [b'"seconds":NaN', b'"seconds":1e300'],
        b'"messages":3': [b'"messages":9223372036854775807', b'"messages":9007199254740993'],
        b"[1,0,0,1,": [
            b"[null,0,0,1,",
            b"[-1,2,0,1,",
            b"[9223372036854775807,9223372036854775807,0,1,",
        ],
        b'"bytes_in":10': [b'"bytes_in":18446744073709551617'],
    }
    bad = [good.replace(old, new) for old, news in changes.items() for new in news]
    path.write_bytes(gzip.compress(b"".join([good, *bad])))
    rows = history(logs=1, ranges=2)
    less = msgspec.structs.replace(rows[0], bytes=-5)
    most = [msgspec.structs.replace(rows[0], count=2**63 - 1, to=rows[0].to + n) for n in (1, 2)]
    file(source, "ledger", 1, [*rows, less, *most])
    done = ran(session, usage_rollup, source, to)
    assert (done["rows"], done["quarantined"]) == (1 + len(bad) + len(rows) + 3, len(bad) + 3)
    reasons = [row[0] for row in table(session, to, "quarantine", "reason")]
    assert reasons == [
        "bytes is negative",
        "count is too large",
        "count is too large",
        "latency_counts do not add up to requests",
        "latency_counts do not add up to requests",
        "latency_counts has a negative number",
        "messages is too large",
        "messages is too large",
        "not a row of this kind",
        "seconds is too large",
        "seconds is too large",
    ]
    assert table(session, to, "usage_hours", "messages", "seconds", "latency_0") == [(3, 0.5, 1)]
    assert sum(row[0] for row in table(session, to, "bill", "published")) == total(rows, "published")
