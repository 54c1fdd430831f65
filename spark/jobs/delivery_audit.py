"""`delivery_audit`: whether every message that was published is accounted for, from the ledger's files alone.

Much data is screened in one pass, and only what the screen cannot vouch for is looked at range by range.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any, Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark.jobs.quarantine import set_aside
from spark.jobs.reading import Rows, usage_files
from spark.transforms import audit, screen
from spark.transforms.sweep import LOG, findings

SCREEN_BYTES_MIN: Final = 64 * 1024 * 1024
"""Less than this, compressed, is looked at range by range at once."""
FAULTS_SHOWN_MAX: Final = 100


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--from", dest="source", type=Path, required=True, help="A folder of usage files.")
    parser.add_argument("--to", dest="to", type=Path, required=True, help="Where the tables are.")
    parser.add_argument(
        "--screen", choices=["auto", "always", "never"], default="auto", help="Whether to screen first."
    )


def run(session: SparkSession, options: Namespace) -> dict[str, Any]:
    """Totals by queue, faults by queue and range, and how many of each."""
    files = usage_files(options.source, "ledger")
    done: dict[str, Any] = {
        "files": len(files),
        "rows": 0,
        "quarantined": 0,
        "lost": 0,
        "faults": 0,
        "first_faults": [],
    }
    if not files:
        return done
    big = sum(path.stat().st_size for path in files) >= SCREEN_BYTES_MIN
    rows = Rows(session, files, "ledger", audit.COLUMNS)
    if options.screen == "always" or (options.screen == "auto" and big):
        logs, faults, kept = _screened(session, rows, files)
    else:
        ranges = audit.ranges_of(rows.good()).persist(StorageLevel.MEMORY_AND_DISK)
        logs, faults, kept = audit.logs_of(ranges), audit.faults_of(ranges), ranges
    totals = audit.totals_of(logs)
    for name, table in (("audit_queues", totals), ("audit_faults", faults)):
        table.coalesce(1).write.mode("overwrite").parquet(str(options.to / name))
    seen, bad = rows.counted()
    if bad:
        set_aside(rows.bad(), options.to)
    kept.unpersist()
    return done | {"rows": seen, "quarantined": bad} | _told(session, options.to)


def _screened(session: SparkSession, rows: Rows, files: list[Path]) -> tuple[DataFrame, DataFrame, DataFrame]:
    """(logs, faults, what is kept in memory)."""
    chunks = screen.chunks_of(rows.good(times_as_text=True)).persist(StorageLevel.MEMORY_AND_DISK)
    suspects = screen.suspects_of(chunks).persist()
    named = suspects.agg(F.collect_set("queue_uid").alias("uids")).first()
    assert named is not None
    fine = audit.logs_of(chunks.join(suspects, LOG, "left_anti"))
    if not named["uids"]:
        return fine, findings(chunks).limit(0), chunks
    again = Rows(session, files, "ledger", audit.COLUMNS).good()
    mine = again.where(F.col("queue_uid").isin(named["uids"])).join(F.broadcast(suspects), LOG, "left_semi")
    ranges = audit.ranges_of(mine).persist(StorageLevel.MEMORY_AND_DISK)
    return fine.unionByName(audit.logs_of(ranges)), audit.faults_of(ranges), chunks


def _told(session: SparkSession, folder: Path) -> dict[str, Any]:
    faults = session.read.parquet(str(folder / "audit_faults"))
    totals = session.read.parquet(str(folder / "audit_queues"))
    counted = faults.agg(
        F.count(F.lit(1)).alias("faults"),
        F.coalesce(F.sum(F.when(F.col("fault") == "lost", F.col("messages"))), F.lit(0)).alias("lost"),
    ).first()
    summed = totals.agg(
        *[F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in ("published", "settled", "outstanding")]
    ).first()
    assert counted is not None and summed is not None
    first = faults.orderBy("tenant", "queue", "partition", "from").limit(FAULTS_SHOWN_MAX).collect()
    return counted.asDict() | summed.asDict() | {"first_faults": [row.asDict() for row in first]}
