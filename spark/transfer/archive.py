"""Copies the messages of a stream, or a queue's dead letters, since the last run to Parquet by day, each once.

A run is a streaming query that takes what is there and ends. Its checkpoint is stored next to the files. Spark lists
the files in `_spark_metadata` with the batch that wrote them: a run that is killed may leave unlisted files, and the
next run writes that batch again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark.progress import awaited
from spark.source import register

ROWS: Final = "messages"
CHECKPOINT: Final = "checkpoint"
OFFSETS_PER_BATCH: Final = "1000000"
"""Offsets per batch, unless `maxOffsetsPerBatch` is given: the first run over a long stream takes several batches."""


def archive(session: SparkSession, options: Mapping[str, str], folder: str) -> int:
    """Appends to `folder`, a path or URL that Spark can write to. Returns how many messages this run added.

    `options` are those of `format("pushq")`; with `seal`, bodies are encrypted with the given key. Raises Spark's
    `StreamingQueryException` with the reason; the run can be started again.
    """
    register(session)
    rows = session.readStream.format("pushq").options(**{"maxOffsetsPerBatch": OFFSETS_PER_BATCH, **options}).load()
    query = (
        rows.withColumn("day", F.date_format("published_at", "yyyy-MM-dd"))
        .writeStream.format("parquet")
        .partitionBy("day")
        .option("checkpointLocation", f"{folder.rstrip('/')}/{CHECKPOINT}")
        .trigger(availableNow=True)
        .start(f"{folder.rstrip('/')}/{ROWS}")
    )
    return awaited(query).rows
