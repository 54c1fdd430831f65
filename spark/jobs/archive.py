"""`archive`: copies the messages of a stream, or a queue's dead letters, since the last run to Parquet by day."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from pyspark.sql import SparkSession

from spark.source.options import parsed
from spark.transfer.archive import archive
from spark.transfer.arguments import add_archive, options_of, translated_errors


def add_arguments(parser: ArgumentParser) -> None:
    add_archive(parser)


def run(session: SparkSession, options: Namespace) -> dict[str, Any]:
    """Returns how many messages this run added. Raises `TransferFailed`."""
    given = options_of(options)
    with translated_errors():
        parsed(given)
        return {"messages": archive(session, given, options.folder), "folder": options.folder}


if __name__ == "__main__":
    from spark.jobs.main import main_of

    main_of(__file__)
