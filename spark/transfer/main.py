"""The standalone command line of `archive` and `replay`, which are also jobs of `pushq usage run`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Sequence

from spark.session import CannotStart, spark_session
from spark.source.options import parsed
from spark.transfer.archive import archive
from spark.transfer.arguments import (
    ARCHIVE,
    REPLAY,
    TransferFailed,
    add_archive,
    add_replay,
    options_of,
    translated_errors,
)
from spark.transfer.replay import Wanted, replay
from spark.wording import counted

FAILED = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0, or 1 with one sentence on stderr."""
    given = _parser().parse_args(arguments)
    options = options_of(given)
    try:
        with translated_errors():
            parsed(options)
            session = spark_session(f"pushq-{given.job}", given.master, given.memory)
            if given.job == "archive":
                messages = counted(archive(session, options, given.folder), "message")
                print(f"{messages} archived in {given.folder}")
            else:
                wanted = Wanted(given.since, given.until, given.where)
                messages = counted(replay(session, given.folder, options, wanted), "message")
                print(f"{messages} replayed into {given.queue}")
    except (CannotStart, TransferFailed) as error:
        print(f"pushq: {error}", file=sys.stderr)
        return FAILED
    return 0


def _parser() -> ArgumentParser:
    made = ArgumentParser(prog="spark.transfer", description=__doc__)
    jobs = made.add_subparsers(dest="job", required=True)
    for name, text, add_arguments in (("archive", ARCHIVE, add_archive), ("replay", REPLAY, add_replay)):
        job = jobs.add_parser(name, help=text)
        add_arguments(job)
        job.add_argument("--master", help="Spark master; else local[*]")
        job.add_argument("--memory", help="driver memory, such as 4g")
    return made
