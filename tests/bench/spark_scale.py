"""How long `usage_rollup` and `delivery_audit` take over generated files: `python -m tests.bench.spark_scale`.

It prints each result as it comes, per job and size, and the tables at the end. The goals are for the full sizes on 2
cores with 4 GB for the driver: 10 M rows of minutes in 60 s, 50 M ledger rows in 180 s, and ten times the data in at
most 11 times the time. It exits with 1 if a full size takes longer.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

from pyspark.sql import SparkSession

from spark.jobs import delivery_audit, usage_rollup
from spark.session import spark_session
from tests.bench import machine, spark_data
from tests.bench.page import PUBLISHED_SPARK, write_page
from tests.bench.rows import Row, append_row
from tests.bench.spark_report import GOALS, misses, report
from tests.bench.stamp import stamp

BYTES_PER_ROW: Final = 80
"""Upper bound on disk: the files, what is shuffled or spilled, and the tables."""
MEMORY: Final = "4g"
CORES: Final = 2
TICKS: Final = os.sysconf("SC_CLK_TCK")


class Job(NamedTuple):
    name: str
    module: ModuleType
    write: Callable[[SparkSession, Path, int], int]


JOBS: Final = (
    Job("usage_rollup", usage_rollup, spark_data.write_minutes),
    Job("delivery_audit", delivery_audit, spark_data.write_ledger),
)


def main() -> int:
    options = _options()
    rows = {job.name: round(GOALS[job.name].rows * options.part) for job in JOBS}
    needed = max(rows.values()) * BYTES_PER_ROW
    if (free := shutil.disk_usage(options.folder).free) < needed:
        print(
            f"--folder {options.folder}: needs {needed // 10**6:,} MB, but only {free // 10**6:,} MB are free: name "
            "another folder, or a smaller --part",
            file=sys.stderr,
        )
        return 2
    folder = Path(tempfile.mkdtemp(prefix="pushq-scale-", dir=options.folder))
    found = [described(folder)]
    session = spark_session("scale", f"local[{CORES}]", MEMORY, folder=folder)
    try:
        for job in JOBS:
            if options.only in (None, job.name):
                sizes = [rows[job.name]] if options.no_tenth else [rows[job.name] // 10, rows[job.name]]
                found += measured(session, folder, job, sizes)
    finally:
        session.stop()
        shutil.rmtree(folder)
    for row in found if options.json else ():
        append_row(options.json, row)
    print(report(found))
    if options.publish:
        PUBLISHED_SPARK.unlink(missing_ok=True)
        for row in found:
            append_row(PUBLISHED_SPARK, row)
        write_page()
    return 1 if misses(found) else 0


def described(folder: Path) -> Row:
    """The machine, the commit and the date."""
    named = stamp()
    del named["encrypted"]
    found = machine.describe(folder, machine.choose_cores(pin=False))
    kept = ("processor", "cores", "memory_gib", "kernel", "filesystem", "python")
    return {
        "kind": "machine",
        **named,
        **{name: found[name] for name in kept},
        "pyspark": metadata.version("pyspark"),
        "driver": MEMORY,
    }


def measured(session: SparkSession, folder: Path, job: Job, sizes: Sequence[int], *, is_long: bool = True) -> list[Row]:
    """One row per size: how long the job took over new files, and how long to find that there are none. `is_long`: the
    first size is run twice, as the JVM compiles during the first run, and each result is printed as it comes."""
    found: list[Row] = []
    for size in sizes:
        source, to = folder / f"{job.name}-files", folder / f"{job.name}-tables"
        source.mkdir()
        written = job.write(session, source, size)
        kilobytes = sum(path.stat().st_size for path in source.iterdir()) // 1_000
        if is_long and not found:
            timed(session, job, source, folder / "warm")  # lets the JVM compile what it needs
            shutil.rmtree(folder / "warm")
        took, others, done = timed(session, job, source, to)
        assert done["rows"] == written and not done["quarantined"] and not done.get("faults"), done
        again, _, nothing = timed(session, job, source, to)
        assert nothing["files"] == 0, nothing
        row = {"kind": job.name, "rows": written, "files": done["files"], "kilobytes": kilobytes}
        row |= {"seconds": round(took, 1), "again_seconds": round(again, 1), "other_cpu_pct": round(others, 1)}
        found.append(row)
        if is_long:
            print(row, flush=True)
        for place in (source, to):
            shutil.rmtree(place)
    return found


def timed(session: SparkSession, job: Job, source: Path, to: Path) -> tuple[float, float, dict[str, Any]]:
    """(seconds, CPU use of other processes meanwhile in percent of a core, the job's result)."""
    arguments = argparse.ArgumentParser()
    job.module.add_arguments(arguments)
    given = arguments.parse_args(["--from", str(source), "--to", str(to)])
    begun, busy, own = time.monotonic(), machine.busy_s(), _own_s(session)
    done: dict[str, Any] = job.module.run(session, given)
    took = time.monotonic() - begun
    others = machine.busy_s() - busy - (_own_s(session) - own)
    return took, max(0.0, 100 * others / took), done


def _own_s(session: SparkSession) -> float:
    """CPU seconds of Spark's process and of this one."""
    pid = session.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    spent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, spent)) / TICKS + time.process_time()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", type=float, default=1.0, help="of the full sizes; a tenth is also measured")
    parser.add_argument("--only", choices=[job.name for job in JOBS])
    parser.add_argument("--no-tenth", action="store_true")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="a folder with enough room")
    parser.add_argument("--json", type=Path, help="append the rows to this file")
    parser.add_argument("--publish", action="store_true", help="keep the rows as those shown in the documentation")
    options = parser.parse_args()
    if options.publish and (options.part != 1.0 or options.only or options.no_tenth):
        parser.error("--publish: the documentation shows full sizes of every job; omit --part, --only and --no-tenth")
    return options


if __name__ == "__main__":
    sys.exit(main())
