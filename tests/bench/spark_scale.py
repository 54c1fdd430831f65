"""How long `usage_rollup` and `delivery_audit` take over generated files: `python -m tests.bench.spark_scale`.

It prints a line of JSON a job and a size. The goals are those of the full sizes on 2 cores with 4 GB for the driver:
10 M rows of minutes in 60 s, 50 M rows of the ledger in 180 s, and ten times the data in at most 11 times the time.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path

from pyspark.sql import SparkSession

from spark.jobs import delivery_audit, usage_rollup
from spark.session import spark_session
from tests.bench import spark_data

FULL = {"ledger": 50_000_000, "minutes": 10_000_000}
GROWTH_MAX = 11.0


def timed(session: SparkSession, job: str, source: Path, to: Path) -> tuple[float, dict[str, object]]:
    module = {"usage_rollup": usage_rollup, "delivery_audit": delivery_audit}[job]
    arguments = argparse.ArgumentParser()
    module.add_arguments(arguments)
    begun = time.monotonic()
    done = module.run(session, arguments.parse_args(["--from", str(source), "--to", str(to)]))
    return time.monotonic() - begun, done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", type=float, default=1.0, help="of the full sizes; a tenth is measured beside it")
    parser.add_argument("--only", choices=["usage_rollup", "delivery_audit"])
    parser.add_argument("--faults", action="store_true", help="plant a fault in the ledger")
    parser.add_argument("--no-tenth", action="store_true")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="pushq-scale-"))
    session = spark_session("scale", "local[2]", "4g", folder=folder)
    try:
        for job, kind in (("usage_rollup", "minutes"), ("delivery_audit", "ledger")):
            if options.only in (None, job):
                shares = [options.part] if options.no_tenth else [options.part / 10, options.part]
                measure(session, folder, job, kind, shares, faults=options.faults)
    finally:
        session.stop()
        shutil.rmtree(folder)


def measure(session: SparkSession, folder: Path, job: str, kind: str, shares: list[float], *, faults: bool) -> None:
    took: list[tuple[int, float]] = []
    for share in shares:
        source, to = folder / f"{kind}-{share}", folder / f"tables-{share}"
        source.mkdir()
        if kind == "ledger":
            rows = spark_data.write_ledger(session, source, int(FULL[kind] * share), faults=faults)
        else:
            rows = spark_data.write_minutes(session, source, int(FULL[kind] * share))
        size = sum(path.stat().st_size for path in source.iterdir())
        if not took:
            timed(session, job, source, folder / "warm")  # Java has compiled what it needs
        seconds, done = timed(session, job, source, to)
        assert done["rows"] == rows and not done["quarantined"], done
        took.append((rows, seconds))
        shown = {"job": job, "rows": rows, "megabytes": size // 1_000_000, "seconds": round(seconds, 1)}
        print(json.dumps(shown | {"faults": done.get("faults", 0), "lost": done.get("lost", 0)}), flush=True)
        shutil.rmtree(source)
        shutil.rmtree(to)
    if len(took) == 2:
        (few, first), (many, second) = took
        growth = second / first / (many / few) * 10
        print(json.dumps({"job": job, "ten_times_the_data_takes": round(growth, 1), "at_most": GROWTH_MAX}), flush=True)


if __name__ == "__main__":
    main()
