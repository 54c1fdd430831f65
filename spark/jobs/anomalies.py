"""`anomalies`: hours in which a queue differs from the same hour of earlier weeks, and the alert rules they suggest."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark.jobs import alert_file
from spark.jobs.arguments import above_zero, from_zero, moment, whole
from spark.jobs.durable import write_whole
from spark.jobs.reading import BadFolder
from spark.jobs.tables import Tables
from spark.transforms import anomalies

SHOWN_MAX: Final = 100
RULES: Final = "alert_rules"
"""One file per tenant, in the form that `pushq alert import` reads."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--from", dest="source", type=Path, required=True, help="Folder of the `usage_rollup` tables.")
    parser.add_argument("--to", dest="to", type=Path, required=True, help="Folder to write the tables to.")
    parser.add_argument("--since", type=moment, required=True, help="First hour to check: 2026-11-22T00:00:00Z.")
    parser.add_argument("--weeks", type=whole, default=3, help="Weeks of history that a baseline needs.  [3]")
    parser.add_argument("--sigmas", type=above_zero, default=4.0, help="Deviations that make an hour unusual.  [4]")
    parser.add_argument("--messages", type=from_zero, default=100, help="Smaller differences are ignored.  [100]")


def run(session: SparkSession, options: Namespace) -> dict[str, Any]:
    """Returns the number of unusual hours, the first suggestions, and the number of alert rules written."""
    with Tables(session, options.source).still():
        return _made(session, options)


def _made(session: SparkSession, options: Namespace) -> dict[str, Any]:
    tables = Tables(session, options.source)
    flows = tables.read("flows")
    if flows is None:
        raise BadFolder(f"--from {options.source}: there is no table `flows`; run usage_rollup first")
    found = anomalies.anomalies(
        anomalies.hours_of(flows, _last_hour(flows, tables.read("usage_hours"))),
        since=options.since,
        weeks_min=options.weeks,
        sigmas=options.sigmas,
        messages_min=options.messages,
    ).persist(StorageLevel.MEMORY_AND_DISK)
    found.write.mode("overwrite").parquet(str(options.to / "anomalies"))
    suggested = anomalies.suggestions(found)
    suggested.write.mode("overwrite").json(str(options.to / "alert_suggestions"))
    ordered = suggested.orderBy(F.desc("score_max"), "tenant", "queue", "queue_uid", "measure")
    first = [row.asDict() for row in ordered.limit(alert_file.RULES_MAX).collect()]
    rules = alert_file.rules(first)
    _write(options.to / RULES, rules)
    done = {"hours": found.count(), "suggestions": first[:SHOWN_MAX], "rules": sum(map(len, rules.values()))}
    found.unpersist()
    return done


def _write(folder: Path, rules: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Writes one file per tenant, and removes those of earlier runs."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {f"{quote(tenant, safe='')}.json": theirs for tenant, theirs in rules.items()}
    for name, theirs in files.items():
        write_whole(folder / name, alert_file.written(theirs))
    for path in folder.glob("*.json"):
        if path.name not in files:
            path.unlink()


def _last_hour(flows: DataFrame, usage: DataFrame | None) -> int:
    """The last hour in any table: if one queue is silent, other queues and requests show that time went on."""
    hours = flows.select(F.date_trunc("hour", "at").alias("hour"))
    if usage is not None:
        hours = hours.unionByName(usage.select("hour"))
    last = hours.agg(F.max(F.unix_seconds("hour")).alias("last")).first()
    assert last is not None
    return int(last["last"] or 0)


if __name__ == "__main__":
    from spark.jobs.main import main_of

    main_of(__file__)
