"""`report`: one HTML page about the tables: bill, days, audit, capacity and unusual hours."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import TimestampType

from spark import report
from spark.jobs.durable import write_whole
from spark.jobs.reading import BadFolder
from spark.jobs.tables import Tables
from spark.report import Column, Plot, Section
from spark.wording import counted

RANKED_MAX: Final = 12
"""How many queues a plot compares."""
_QUEUE: Final = (Column("tenant", "Tenant"), Column("queue", "Queue"))


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--from", dest="source", type=Path, required=True, help="Folder of the tables.")
    parser.add_argument("--to", dest="to", type=Path, required=True, help="HTML file to write.")


def run(session: SparkSession, options: Namespace) -> dict[str, Any]:
    """Returns the titles of the page's sections, and the file."""
    tables = Tables(session, options.source)
    with tables.still():
        makers = [
            (_bill, "bill"),
            (_usage, "usage_days"),
            (_audit, "audit_queues"),
            (_faults, "audit_faults"),
            (_capacity, "capacity"),
            (_unusual, "anomalies"),
        ]
        sections = [make(rows) for make, name in makers if (rows := tables.read(name)) is not None]
    if not sections:
        raise BadFolder(f"--from {options.source}: there are no tables; run usage_rollup or another job first")
    about = "Days and hours are in UTC. 1 kB is 1,000 bytes."
    write_whole(options.to, report.page("Pushq: usage", about, sections))
    return {"sections": [section.title for section in sections], "file": str(options.to)}


def _bill(bill: DataFrame) -> Section:
    names = ("published", "delivered", "published_bytes", "expired", "dead_lettered")
    queues = bill.groupBy("tenant", "queue").agg(*_sums(names)).orderBy(F.desc("published"), "tenant", "queue")
    days = _days(bill, *_sums(("published", "delivered")))
    plot = Plot(
        "Messages per day",
        "messages",
        [str(row["day"]) for row in days],
        [(name, [float(row[name]) for row in days]) for name in ("published", "delivered")],
    )
    columns = [
        *_QUEUE,
        Column("published", "Published", "count"),
        Column("delivered", "Delivered", "count"),
        Column("published_bytes", "Published size", "bytes"),
        Column("expired", "Expired", "count"),
        Column("dead_lettered", "Dead-lettered", "count"),
    ]
    about = "What each queue is billed for, exact to the message. Each consumer group's acknowledgement is a delivery."
    return _section("Bill", about, queues, columns, [plot])


def _usage(usage: DataFrame) -> Section:
    sums = _sums(("requests", "messages", "bytes_in", "bytes_out"))
    slow = F.max("p99_seconds").alias("slow")
    keys = ("tenant", "operation", "outcome")
    found = usage.groupBy(*keys).agg(*sums, slow).orderBy(F.desc("requests"), *keys)
    is_ok, requests = F.col("outcome") == "ok", F.col("requests")
    days = _days(usage, F.sum(F.when(is_ok, requests)).alias("ok"), F.sum(F.when(~is_ok, requests)).alias("refused"))
    plot = Plot(
        "Requests per day, by outcome",
        "requests",
        [str(row["day"]) for row in days],
        [(name, [float(row[name] or 0) for row in days]) for name in ("ok", "refused")],
    )
    columns = [
        Column("tenant", "Tenant"),
        Column("operation", "Operation"),
        Column("outcome", "Outcome"),
        Column("requests", "Requests", "count"),
        Column("messages", "Messages", "count"),
        Column("bytes_in", "Received", "bytes"),
        Column("bytes_out", "Sent", "bytes"),
        Column("slow", "p99 on the worst day, s", "seconds"),
    ]
    about = "Requests by tenant, operation and outcome. A percentile is the upper bound of its bucket."
    return _section("Usage", about, found, columns, [plot])


def _audit(queues: DataFrame) -> Section:
    counts = queues.agg(
        F.count(F.lit(1)).alias("queues"),
        F.coalesce(F.sum(F.when(~F.col("is_accounted"), 1)), F.lit(0)).alias("off"),
        *[F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in ("published", "lost")],
    ).first()
    assert counts is not None
    summary = f"{counted(counts['queues'], 'queue')}, {counted(counts['published'], 'message')} published"
    wrong = f"{counted(counts['off'], 'queue')} not accounted for" if counts["off"] else "all accounted for"
    columns = [
        *_QUEUE,
        Column("is_accounted", "Accounted for", "yes"),
        Column("published", "Published", "count"),
        Column("settled", "Settled", "count"),
        Column("read", "Read from streams", "count"),
        Column("expired", "Expired", "count"),
        Column("dead_lettered", "Dead-lettered", "count"),
        Column("other_in", "Other inflow", "count"),
        Column("other_out", "Other outflow", "count"),
        Column("outstanding", "Outstanding", "count"),
        Column("lost", "Lost", "count"),
    ]
    rows = queues.orderBy("is_accounted", F.desc("published"), "tenant", "queue")
    return _section("Audit", f"What became of each queue's messages: {summary}; {wrong}.", rows, columns)


def _faults(faults: DataFrame) -> Section:
    columns = [
        *_QUEUE,
        Column("node", "Copy of the data"),
        Column("partition", "Partition", "count"),
        Column("fault", "Fault"),
        Column("from", "From offset", "count"),
        Column("to", "To offset", "count"),
        Column("messages", "Messages", "count"),
    ]
    rows = faults.orderBy("tenant", "queue", "node", "partition", "from", "fault")
    return _section("Faults", "Ledger ranges that do not add up.", rows, columns)


def _capacity(capacity: DataFrame) -> Section:
    rows = capacity.orderBy(F.desc("peak_per_second"), "tenant", "queue")
    first = rows.limit(RANKED_MAX).collect()
    names = [f"{row['tenant']}/{row['queue']}" for row in first]
    peak = Plot("Peaks", "messages a second", names, [("peak", [row["peak_per_second"] for row in first])], True)
    dear = capacity.where("cost_per_day > 0").orderBy(F.desc("cost_per_day"), "tenant", "queue").limit(RANKED_MAX)
    costs = dear.collect()
    cost = Plot(
        "Cost per day",
        "in the currency of the prices",
        [f"{row['tenant']}/{row['queue']}" for row in costs],
        [("cost", [row["cost_per_day"] for row in costs])],
        True,
    )
    columns = [
        *_QUEUE,
        Column("published_per_day", "Messages per day", "count"),
        Column("peak_per_second", "Peak per second", "number"),
        Column("partitions", "Partitions", "count"),
        Column("partitions_wanted", "Wanted", "count"),
        Column("skew", "Skew", "number"),
        Column("share", "Share of all", "share"),
        Column("held_bytes", "Stored", "bytes"),
        Column("held_growth_per_day", "Growth per day", "bytes"),
        Column("days_left", "Days until 80 % full", "days"),
        Column("cost_per_day", "Cost per day", "money"),
        Column("cost_per_million", "Cost per million messages", "money"),
    ]
    about = "Load and cost of each queue. Skew is the load of its fullest partition relative to an even share."
    return _section("Capacity", about, rows, columns, [peak, cost])


def _unusual(anomalies: DataFrame) -> Section:
    columns = [
        Column("hour", "Hour", "time"),
        *_QUEUE,
        Column("measure", "What"),
        Column("value", "Was", "count"),
        Column("median", "Usual", "count"),
        Column("score", "Deviations", "number"),
        Column("weeks", "Weeks compared", "count"),
    ]
    rows = anomalies.orderBy(F.desc(F.abs("score")), "hour", "tenant", "queue", "measure")
    about = "Hours that differ from the same hour of earlier weeks, largest deviations first. Usual is the median."
    return _section("Unusual hours", about, rows, columns)


def _section(title: str, text: str, rows: DataFrame, columns: Sequence[Column], plots: Sequence[Plot] = ()) -> Section:
    total = rows.count()
    shown = rows.select(*[_as_shown(rows, one.name) for one in columns]).limit(report.ROWS_SHOWN_MAX).collect()
    return Section(title, text, columns, [tuple(row) for row in shown], plots, total - len(shown))


def _as_shown(rows: DataFrame, name: str) -> SparkColumn:
    """Times as text: collected timestamps would be in this machine's time zone."""
    if isinstance(rows.schema[name].dataType, TimestampType):
        return F.date_format(name, "yyyy-MM-dd HH:mm").alias(name)
    return F.col(name)


def _days(rows: DataFrame, *sums: Any) -> list[Any]:
    """The last days, oldest first."""
    newest = rows.groupBy("day").agg(*sums).orderBy(F.desc("day")).limit(report.POINTS_MAX)
    return sorted(newest.collect(), key=lambda row: str(row["day"]))


def _sums(names: Sequence[str]) -> list[Any]:
    return [F.sum(name).alias(name) for name in names]


if __name__ == "__main__":
    from spark.jobs.main import main_of

    main_of(__file__)
