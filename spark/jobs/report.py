"""`report`: one HTML page about what the tables have: the bill, the days, the audit, capacity and what is unusual."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark import report
from spark.jobs.durable import write_whole
from spark.jobs.reading import BadFolder
from spark.jobs.tables import Tables


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--from", dest="source", type=Path, required=True, help="The folder of tables.")
    parser.add_argument("--to", dest="to", type=Path, required=True, help="The HTML file.")


def run(session: SparkSession, options: Namespace) -> dict[str, Any]:
    """Which tables the page has."""
    with Tables(session, options.source).still():
        return _made(session, options)


def _made(session: SparkSession, options: Namespace) -> dict[str, Any]:

    def table(name: str) -> DataFrame | None:
        return session.read.parquet(str(options.source / name)) if (options.source / name).exists() else None

    sections = []
    if (bill := table("bill")) is not None:
        sums = [F.sum(name).alias(name) for name in ("published", "published_bytes", "delivered", "expired")]
        days = bill.groupBy("day").agg(F.sum("published").alias("n")).orderBy("day").limit(report.POINTS_MAX).collect()
        queues = _first(bill.groupBy("tenant", "queue").agg(*sums).orderBy(F.desc("published")))
        bars = [(str(row["day"]), float(row["n"])) for row in days]
        sections.append(_section("Bill", "Messages published a day, and what each queue is billed for.", queues, bars))
    if (usage := table("usage_days")) is not None:
        sums = [F.sum(name).alias(name) for name in ("requests", "messages", "bytes_in", "bytes_out")]
        slow = F.max("p99_seconds").alias("p99 of the worst day, s")
        found = _first(usage.groupBy("tenant", "operation", "outcome").agg(*sums, slow).orderBy(F.desc("requests")))
        sections.append(_section("Usage", "Requests by tenant, operation and outcome.", found))
    for name, title, text in (
        ("audit_queues", "Audit", "What became of each queue's messages."),
        ("audit_faults", "Faults", "Ranges of the ledger that do not add up."),
        ("capacity", "Capacity", "What each queue needs and costs, and days until the storage is 80 % full."),
        ("anomalies", "Unusual hours", "Hours that are unlike the same hour of the weeks before."),
    ):
        if (found_table := table(name)) is not None:
            sections.append(_section(title, text, _first(found_table)))
    if not sections:
        raise BadFolder(f"--from {options.source}: there are no tables; run usage_rollup or another job first")
    write_whole(options.to, report.page("Pushq: usage", sections))
    return {"sections": [section.title for section in sections], "file": str(options.to)}


def _first(rows: DataFrame) -> DataFrame:
    return rows.limit(report.ROWS_SHOWN_MAX)


def _section(title: str, text: str, rows: DataFrame, bars: list[tuple[str, float]] | None = None) -> report.Section:
    return report.Section(title, text, rows.columns, [tuple(row) for row in rows.collect()], bars or [])
