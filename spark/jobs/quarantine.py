"""The table of rows that could not be counted: kind, file, reason and the line as it was. A row is there once."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame

QUARANTINE = "quarantine"


def set_aside(bad: DataFrame, folder: Path) -> None:
    """Adds rows to `quarantine`, those of each file in a folder of the file's name: again is the same."""
    from pyspark.sql import functions as F

    named = bad.withColumn("source", F.regexp_extract("file", "([^/]+)$", 1)).drop("file")
    named.write.mode("overwrite").partitionBy("source").option("partitionOverwriteMode", "dynamic").parquet(
        str(folder / QUARANTINE)
    )
