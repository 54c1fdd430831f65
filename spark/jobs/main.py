"""Runs a job by name: creates its session, and prints the result as one line of JSON."""

from __future__ import annotations

import importlib
import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from spark.jobs import failures
from spark.jobs.reading import BadFolder, is_little
from spark.jobs.tables import Busy
from spark.session import CannotStart, spark_session
from spark.transfer.arguments import ARCHIVE, REPLAY, TransferFailed

JOBS: Final = {
    "usage_rollup": "hours, days and bills from usage files",
    "delivery_audit": "whether every message is accounted for",
    "capacity_plan": "growth, peaks, skew and cost, and a plan of partitions and moves",
    "anomalies": "hours that differ from the same hour of earlier weeks",
    "live_usage": "current usage by minute, until it is stopped",
    "report": "an HTML page about the tables",
    "archive": ARCHIVE,
    "replay": REPLAY,
}
"""Each is a module of this package with `add_arguments(parser)` and `run(session, options)`."""
ENDLESS: Final = ("live_usage",)
FAILED: Final = 1
_PATTERN: Final = frozenset("*?[]{}\\")
"""Spark treats a path with one of these characters as a glob pattern."""


def parser() -> ArgumentParser:
    made = ArgumentParser(prog="pushq usage run", description="Spark jobs over usage files and messages.")
    jobs = made.add_subparsers(dest="job", required=True, metavar="JOB")
    for name, text in JOBS.items():
        one = jobs.add_parser(name, help=text, description=text)
        one.add_argument("--master", help="Spark master; local[*] unless spark-submit sets another.")
        one.add_argument("--memory", help="Driver memory, such as 4g.")
        importlib.import_module(f"spark.jobs.{name}").add_arguments(one)
    return made


def run_job(arguments: Sequence[str]) -> dict[str, Any]:
    """Runs one job in its own session. Raises `CannotStart`, `BadFolder`, `Busy`, `TransferFailed`."""
    options = parser().parse_args(arguments)
    _check_names(options)
    session = spark_session(f"pushq {options.job}", options.master, options.memory, little=_is_little(options))
    try:
        done: dict[str, Any] = importlib.import_module(f"spark.jobs.{options.job}").run(session, options)
    finally:
        session.stop()
    return done


def _check_names(options: Namespace) -> None:
    """Raises `BadFolder` for a folder whose name Spark would treat as a glob pattern."""
    for option, name in (("--from", "source"), ("--to", "to")):
        folder: Path | None = getattr(options, name, None)
        if folder is not None and not _PATTERN.isdisjoint(str(folder)):
            detail = "Spark treats names with any of * ? [ ] { } \\ as patterns; give it another name"
            raise BadFolder(f"{option} {folder}: {detail}")


def _is_little(options: Namespace) -> bool:
    """Whether a job's folders contain little data. False for jobs on messages, and on files yet to arrive, as their
    size is unknown."""
    if options.job in ENDLESS or not hasattr(options, "source"):
        return False
    return is_little([options.source, options.to])


def main(arguments: Sequence[str]) -> int:
    try:
        print(json.dumps(run_job(arguments), default=str))
    except (BadFolder, Busy, CannotStart, TransferFailed) as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    except (Py4JJavaError, PySparkException) as error:
        if (why := failures.reason(str(error))) is None:
            raise
        print(f"error: {why}", file=sys.stderr)
        return FAILED
    return 0


def main_of(file: str) -> NoReturn:
    """Runs the job of the module `file` with the process's arguments: for `python -m` and `spark-submit`."""
    sys.exit(main([Path(file).stem, *sys.argv[1:]]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
