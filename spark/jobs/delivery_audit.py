"""`delivery_audit`: checks that every published message is accounted for, from the ledger's files alone.

Reads only files that are not in the tables yet, and adds them to their days. Running it again, or with a late file,
counts nothing twice. Large inputs are screened in one pass first, and only days that fail the screening are checked
range by range.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from spark.jobs.audit_days import FAULTS, HOURS, QUEUES, Days
from spark.jobs.quarantine import set_aside
from spark.jobs.quick import is_much
from spark.jobs.reading import usage_files
from spark.jobs.tables import AUDITED, Tables

FAULTS_SHOWN_MAX: Final = 100
FAULTS_SHOWN_BY: Final = [
    (name, "ascending") for name in ("tenant", "queue", "node", "partition", "from", "to", "fault")
]
SUMS: Final = ("published", "settled", "outstanding")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--from", dest="source", type=Path, required=True, help="Folder of usage files.")
    parser.add_argument("--to", dest="to", type=Path, required=True, help="Folder of the tables.")
    parser.add_argument(
        "--screen", choices=["auto", "always", "never"], default="auto", help="Whether to screen first."
    )


def run(session: SparkSession, options: Namespace) -> dict[str, Any]:
    """Returns the counts of files, rows and bad rows of this run, the totals and fault count over all runs, and the
    first faults."""
    files = usage_files(options.source, "ledger")
    tables = Tables(session, options.to, AUDITED)
    with tables.alone():
        done = _bring_up_to_date(session, tables, files, options)
        return done | _totals(tables)


def _bring_up_to_date(session: SparkSession, tables: Tables, files: list[Path], options: Namespace) -> dict[str, Any]:
    days, has_screened = Days(session, tables, files), bool(tables.days(HOURS))
    new, opens_all = days.new(), options.screen == "never" and has_screened
    done: dict[str, Any] = {"files": len(new), "rows": 0, "quarantined": 0, "days": []}
    if not new and not opens_all:
        return done
    wanted = {"always": True, "never": False}.get(options.screen)
    look = days.look_at(new, screens=has_screened or is_much(new) if wanted is None else wanted)
    done["rows"], done["quarantined"] = look.counted()
    if look.rows is not None and done["quarantined"]:
        set_aside(look.rows.bad(), options.to, Tables(session, options.to).files())
    if look.days or opens_all:
        days.bring_up_to_date(look, opens_all=opens_all)
    else:
        tables.replace({}, look.files)
    return done | {"days": sorted(look.days)}


def _totals(tables: Tables) -> dict[str, Any]:
    """The totals from two tables. Reading them here, part by part, is faster than running queries."""
    counted = dict.fromkeys(("faults", "lost", *SUMS), 0)
    first: pa.Table | None = None
    for faults in tables.parts(FAULTS):
        counted["faults"] += faults.num_rows
        counted["lost"] += _sum(faults.filter(pc.equal(faults["fault"], "lost"))["messages"])
        some = faults if first is None else pa.concat_tables([first, faults])
        first = some.take(pc.select_k_unstable(some, FAULTS_SHOWN_MAX, FAULTS_SHOWN_BY))
    for queues in tables.parts(QUEUES):
        for name in SUMS:
            counted[name] += _sum(queues[name])
    return counted | {"first_faults": [] if first is None else first.to_pylist()}


def _sum(numbers: pa.ChunkedArray) -> int:
    return int(pc.sum(numbers, min_count=0).as_py())


if __name__ == "__main__":
    from spark.jobs.main import main_of

    main_of(__file__)
