"""Usage files of any size, as servers would have written them; each row is a function of its number."""

from __future__ import annotations

import shutil
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

LOGS = 1_000
"""Partitions, of 200 queues in 20 tenants; a few of them have most of the messages."""
KINDS_PER_RANGE = 3
DOERS = 2_000
BEGIN = "2026-01-05 00:00:00"
FAULTY_LOG = 7
FAULTY_MINUTE = 50
FAULT_MESSAGES = 5


def write_ledger(session: SparkSession, folder: Path, rows: int, *, faults: bool = False, logs: int = LOGS) -> int:
    """Writes whole hours with about `rows` rows, one file per hour; returns the number of rows. With `faults`, one log
    reports more settled messages than it had."""
    per_hour = 60 * logs * KINDS_PER_RANGE
    hours = max(1, round(rows / per_hour))
    ids = session.range(0, hours * 60 * logs, 1, hours)
    log, minute = F.col("id") % logs, F.floor(F.col("id") / logs)

    def held(at: Column) -> Column:
        return F.when(at < 0, 0).otherwise(F.pmod(F.xxhash64(log, at), F.lit(17))).cast("long")

    published = F.pmod(F.xxhash64(log, minute, F.lit(1)), F.lit(100)) + F.when(log % 50 == 0, 5_000).otherwise(50)
    settled = held(minute - 1) + published - held(minute)
    if faults:
        settled = settled + F.when((log == FAULTY_LOG) & (minute == FAULTY_MINUTE), FAULT_MESSAGES).otherwise(0)
    none = F.lit(None).cast("long")
    kinds = F.array(
        F.struct(F.lit("published").alias("kind"), published.alias("count"), (published * 200).alias("bytes")),
        F.struct(F.lit("settled").alias("kind"), settled.alias("count"), none.alias("bytes")),
        F.struct(F.lit("held").alias("kind"), held(minute).alias("count"), (held(minute) * 200).alias("bytes")),
    )
    wide = ids.select(
        (log % 20).alias("tenant_number"),
        (log % 200).alias("queue_number"),
        log.alias("log"),
        minute.alias("minute"),
        F.explode(kinds).alias("one"),
    )
    found = wide.select(
        F.lit(1).alias("version"),
        F.lit("node-1").alias("node"),
        F.format_string("tenant-%02d", "tenant_number").alias("tenant"),
        F.format_string("queue-%03d", "queue_number").alias("queue"),
        (F.col("queue_number") + 1).alias("queue_uid"),
        F.floor(F.col("log") / 200).alias("partition"),
        F.lit(1).alias("epoch"),
        F.col("one.kind").alias("kind"),
        (F.col("minute") * 11_000).alias("from"),
        ((F.col("minute") + 1) * 11_000).alias("to"),
        F.col("one.count").alias("count"),
        F.col("one.bytes").alias("bytes"),
        _stamp(F.col("minute")).alias("at"),
    )
    _write(found, folder, "ledger")
    return hours * per_hour


def write_minutes(session: SparkSession, folder: Path, rows: int, *, doers: int = DOERS) -> int:
    """Writes whole hours with about `rows` rows, one file per hour; returns the number of rows."""
    hours = max(1, round(rows / (60 * doers)))
    ids = session.range(0, hours * 60 * doers, 1, hours)
    doer, minute = F.col("id") % doers, F.floor(F.col("id") / doers)
    requests = F.pmod(F.xxhash64("id"), F.lit(200)) + 8
    found = ids.select(
        F.lit(1).alias("version"),
        F.lit("node-1").alias("node"),
        _stamp(minute).alias("minute"),
        F.format_string("tenant-%02d", doer % 20).alias("tenant"),
        F.format_string("key-%04d", doer % 500).alias("principal"),
        F.format_string("queue-%03d", doer % 200).alias("queue"),
        F.element_at(
            F.array(*map(F.lit, ("publish", "receive", "ack", "deliver"))), (doer / 500 + 1).cast("int")
        ).alias("operation"),
        F.lit("http").alias("transport"),
        F.lit("ok").alias("outcome"),
        requests.alias("requests"),
        (requests * 10).alias("messages"),
        (requests * 2_000).alias("bytes_in"),
        (requests * 300).alias("bytes_out"),
        F.round(requests * 0.0042, 6).alias("seconds"),
        F.array(requests - 8, *[F.lit(n).cast("long") for n in (4, 2, 1, 1, 0, 0, 0)]).alias("latency_counts"),
        F.lit(False).alias("lossy"),
    )
    _write(found, folder, "minutes")
    return hours * 60 * doers


def _stamp(minute: Column) -> Column:
    at = F.timestamp_seconds(F.unix_timestamp(F.lit(BEGIN)) + minute * 60)
    return F.date_format(at, "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'")


def _write(rows: DataFrame, folder: Path, kind: str) -> None:
    """Writes the rows with Spark, and renames the files as servers name them."""
    aside = folder / f".{kind}"
    rows.write.mode("overwrite").option("compression", "gzip").option("ignoreNullFields", "false").json(str(aside))
    for number, path in enumerate(sorted(aside.glob("part-*.json.gz")), 1):
        path.rename(folder / f"{kind}-node-1-20260105T000000000Z-{number:08d}.ndjson.gz")
    shutil.rmtree(aside)
