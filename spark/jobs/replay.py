"""`replay`: publishes an archive back into a queue, each message once."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from pyspark.sql import SparkSession

from spark.source.options import parsed
from spark.transfer.arguments import add_replay, options_of, translated_errors
from spark.transfer.replay import Wanted, replay


def add_arguments(parser: ArgumentParser) -> None:
    add_replay(parser)


def run(session: SparkSession, options: Namespace) -> dict[str, Any]:
    """Returns how many messages were selected, including those that the queue already had. Raises `TransferFailed`."""
    given, wanted = options_of(options), Wanted(options.since, options.until, options.where)
    with translated_errors():
        parsed(given)
        return {"messages": replay(session, options.folder, given, wanted), "queue": options.queue}


if __name__ == "__main__":
    from spark.jobs.main import main_of

    main_of(__file__)
