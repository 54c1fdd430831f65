"""Copies a stream, or a queue's dead letters, to Parquet by day: all messages since the last run, each once.

It is a streaming query that takes what is there and ends. Its checkpoint is beside the files. Spark lists the files in
`_spark_metadata` with the batch that wrote them: a run that is killed leaves files that are in no list, and the next
run writes that batch again.
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
"""What one batch takes, unless `maxOffsetsPerBatch` is given: a first run over a long stream goes step by step."""


def archive(session: SparkSession, options: Mapping[str, str], folder: str) -> int:
    """Appends to `folder`, a path or address that Spark can write. Returns how many messages this run added.

    `options` are those of `format("pushq")`; with `seal`, bodies are stored under the given key. Raises Spark's
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
