"""The table of rows that could not be counted: kind, file, reason and the line as it was. A row is there once."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from pyspark.sql import DataFrame

QUARANTINE = "quarantine"


def set_aside(bad: DataFrame, folder: Path, but: Collection[str] = ()) -> None:
    """Adds rows to `quarantine`, those of each file in a folder of the file's name: again is the same. What is there of
    files in `but` stays: who set it aside reads more of each row."""
    from pyspark.sql import functions as F

    named = bad.withColumn("source", F.regexp_extract("file", "([^/]+)$", 1)).drop("file")
    there = {path.name.removeprefix("source=") for path in (folder / QUARANTINE).glob("source=*")}
    if stay := there & {*but}:
        named = named.where(~F.col("source").isin(*stay))
    named.write.mode("overwrite").partitionBy("source").option("partitionOverwriteMode", "dynamic").parquet(
        str(folder / QUARANTINE)
    )
