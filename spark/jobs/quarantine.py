"""The table of rows that could not be counted: kind, file, reason and the original line. Each row is stored once."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from pyspark.sql import DataFrame

QUARANTINE = "quarantine"


def set_aside(bad: DataFrame, folder: Path, but: Collection[str] = ()) -> None:
    """Adds rows to `quarantine`, in one folder per source file, so that repeating it changes nothing. Rows of the files
    in `but` are left alone: a job that reads more fields of each row has already set them aside."""
    from pyspark.sql import functions as F

    named = bad.withColumn("source", F.regexp_extract("file", "([^/]+)$", 1)).drop("file")
    there = {path.name.removeprefix("source=") for path in (folder / QUARANTINE).glob("source=*")}
    if stay := there & {*but}:
        named = named.where(~F.col("source").isin(*stay))
    named.write.mode("overwrite").partitionBy("source").option("partitionOverwriteMode", "dynamic").parquet(
        str(folder / QUARANTINE)
    )
