"""`live_usage`: current usage by minute, from usage files as they appear. Runs until it is stopped.

Two queries read the files. One appends to a table: a minute is written once, when the watermark has passed it, and rows
that arrive even later are left out; `usage_rollup` counts them all. The other updates the page that gateways show: a
minute appears with its first row, and changes with late ones.
"""

from __future__ import annotations

import signal
import threading
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark.jobs.arguments import duration
from spark.jobs.live_page import PAGE_FOLDER, LivePage
from spark.jobs.reading import BadFolder
from spark.progress import awaited
from spark.transforms.live import live, of_tenants
from spark.transforms.quality import CORRUPT, schema_of

FILES_PER_BATCH: Final = 1_000
PAUSE: Final = "10 seconds"
TABLE: Final = "live_usage"
_CHECKPOINT: Final = "_checkpoint"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--from", dest="source", type=Path, required=True, help="Folder in which usage files appear.")
    parser.add_argument("--to", dest="to", type=Path, required=True, help="Folder of the table and its checkpoint.")
    parser.add_argument(
        "--late", type=duration, default="5 minutes", help="How late a row may arrive after newer ones.  [5 minutes]"
    )
    parser.add_argument("--once", action="store_true", help="Process what is there, then exit.")


def run(session: SparkSession, options: Namespace) -> dict[str, Any]:
    """Returns how many rows were read, and how often the table was appended to."""
    if not options.source.is_dir():
        raise BadFolder(f"--from {options.source}: there is no such folder")
    if options.to.resolve().is_relative_to(options.source.resolve()):
        raise BadFolder(f"--to {options.to}: Spark would read its own output as usage; name a folder outside of --from")
    if (options.to / TABLE / "_spark_metadata").exists() and not (options.to / _CHECKPOINT).exists():
        # Spark would restart its batch numbers, and skip batches whose numbers are already in the table.
        detail = f"the checkpoint of its table is missing; remove {TABLE} or name another folder to start over"
        raise BadFolder(f"--to {options.to}: {detail}")
    page = LivePage(session, options.to / PAGE_FOLDER)
    page.begin()
    table = (
        live(_lines(session, options), options.late)
        .repartition("day", "tenant")  # one file per tenant, not one per task
        .writeStream.format("parquet")
        .outputMode("append")
        .partitionBy("day", "tenant")
        .option("checkpointLocation", str(options.to / _CHECKPOINT))
        .option("path", str(options.to / TABLE))
    )
    pages = (
        live(of_tenants(_lines(session, options)), options.late)
        .writeStream.outputMode("update")
        .option("checkpointLocation", str(options.to / "_checkpoint_console"))
        .foreachBatch(lambda changed, _: page.turn(changed))
    )
    how: dict[str, Any] = {"availableNow": True} if options.once else {"processingTime": PAUSE}
    queries = [writer.trigger(**how).start() for writer in (table, pages)]
    with _asked_to_stop() as stopping:

        def on_poll() -> None:
            page.is_alive()
            if stopping.is_set():
                _stop(queries)

        try:
            seen = awaited(queries[0], queries[1:], on_poll)
        finally:
            _stop(queries)
    return {"rows": seen.rows, "batches": seen.steps}


def _stop(queries: Iterable[StreamingQuery]) -> None:
    for query in queries:
        query.stop()


@contextmanager
def _asked_to_stop() -> Iterator[threading.Event]:
    """Sets an event on SIGINT and SIGTERM, so that the queries stop between two calls into the JVM: a signal in the
    middle of a call would print a traceback of thousands of lines."""
    stopping = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopping
        return
    before = {one: signal.signal(one, lambda *_: stopping.set()) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopping
    finally:
        for one, handler in before.items():
            signal.signal(one, signal.SIG_DFL if handler is None else handler)


def _lines(session: SparkSession, options: Namespace) -> DataFrame:
    return (
        session.readStream.schema(schema_of("minutes"))
        .option("columnNameOfCorruptRecord", CORRUPT)
        .option("maxFilesPerTrigger", FILES_PER_BATCH)
        .option("pathGlobFilter", "minutes-*.ndjson.gz")
        .json(str(options.source))
    )


if __name__ == "__main__":
    from spark.jobs.main import main_of

    main_of(__file__)
