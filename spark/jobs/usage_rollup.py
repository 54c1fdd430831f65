"""`usage_rollup`: hours and days of usage, ledger ranges, and the bill, as Parquet by day and tenant.

Reads only files that are not in the tables yet, and adds them to their days. Running it again, or with a late file,
counts nothing twice.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from spark.jobs.quarantine import set_aside
from spark.jobs.reading import Rows, check_whole, usage_files
from spark.jobs.tables import Tables
from spark.transforms import rollup


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--from", dest="source", type=Path, required=True, help="Folder of usage files.")
    parser.add_argument("--to", dest="to", type=Path, required=True, help="Folder of the tables.")


def run(session: SparkSession, options: Namespace) -> dict[str, Any]:
    """Returns the number of files, rows and bad rows, and the days that changed."""
    tables = Tables(session, options.to)
    with tables.alone():
        return _bring_up_to_date(session, tables, options)


def _bring_up_to_date(session: SparkSession, tables: Tables, options: Namespace) -> dict[str, Any]:
    known = tables.files()
    new = {
        kind: [path for path in usage_files(options.source, kind) if path.name not in known]
        for kind in ("minutes", "ledger")
    }
    for files in new.values():
        check_whole(files)
    done: dict[str, Any] = {"files": sum(map(len, new.values())), "rows": 0, "quarantined": 0, "days": []}
    if not done["files"]:
        return done
    changed: dict[str, DataFrame] = {}
    days: set[str] = set()
    kept: list[DataFrame] = []
    aside: list[Rows] = []
    for kind, files in new.items():
        if not files:
            continue
        rows = Rows(session, files, kind)
        aside.append(rows)
        part = (rollup.usage_of if kind == "minutes" else rollup.flows_of)(rows.good())
        part = part.persist(StorageLevel.MEMORY_AND_DISK)
        kept.append(part)
        touched = sorted(str(row["day"]) for row in part.select("day").distinct().collect())
        days.update(touched)
        name = "usage_hours" if kind == "minutes" else "flows"
        before = tables.read(name, touched, like=part.schema)
        whole = part if before is None else part.unionByName(before)
        if kind == "minutes":
            hours = part if before is None else rollup.added(whole, rollup.USAGE_KEYS)
            changed["usage_hours"] = hours
            changed["usage_days"] = rollup.with_percentiles(rollup.added(hours, rollup.DAY_KEYS))
        else:
            flows = part if before is None else rollup.once(whole)
            changed["flows"] = flows
            changed["bill"] = rollup.bill_of(flows)
        seen, bad = rows.counted()
        done["rows"] += seen
        done["quarantined"] += bad
    for rows in aside:
        if rows.counted()[1]:
            set_aside(rows.bad(), options.to)
    tables.replace(changed, {path.name: [] for files in new.values() for path in files})
    for part in kept:
        part.unpersist()
    return done | {"days": sorted(days)}


if __name__ == "__main__":
    from spark.jobs.main import main_of

    main_of(__file__)
