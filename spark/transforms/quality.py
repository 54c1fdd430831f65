"""Which rows of usage files can be counted, and why the others cannot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from spark.usage_schema import LEDGER_FLOWS, SCHEMAS

CORRUPT: Final = "_corrupt"
REASON: Final = "reason"
NO_ROW: Final = "not a row of this kind"
ADDED: Final[Mapping[str, Mapping[str, tuple[int, object]]]] = {"ledger": {}, "minutes": {}, "audit": {}}
"""By kind: fields of later versions, each with the version that added it and its value in older rows."""

AMOUNTS: Final = ("count", "bytes", "requests", "messages", "bytes_in", "bytes_out", "seconds")
NAT: Final = (*AMOUNTS, "from", "partition")
AMOUNT_MAX: Final = 2**53
"""For values that are added up: more than any server reaches in a minute, yet a thousand of them fit into a sum."""


def schema_of(kind: str, columns: list[str] | None = None) -> StructType:
    """The fields of a kind to read (all, or some), and one for text that is not such a row."""
    fields = [field for field in SCHEMAS[kind].fields if columns is None or field.name in columns]
    return StructType([*fields, StructField(CORRUPT, StringType())])


def with_defaults(
    rows: DataFrame, kind: str, added: Mapping[str, Mapping[str, tuple[int, object]]] = ADDED
) -> DataFrame:
    """Fills in the fields that rows of older versions lack."""
    for name, (version, default) in added[kind].items():
        rows = rows.withColumn(name, F.when(F.col("version") < version, F.lit(default)).otherwise(F.col(name)))
    return rows


def reason(kind: str, columns: list[str]) -> Column:
    """Why a row cannot be counted; null if it can."""
    there = set(columns)
    why = F.when(F.col(CORRUPT).isNotNull(), F.lit(NO_ROW))
    for field in SCHEMAS[kind].fields:
        if not field.nullable and field.name in there:
            why = why.when(F.col(field.name).isNull(), F.lit(f"{field.name} is missing"))
    for name in NAT:
        if name in there:
            why = why.when(F.col(name) < 0, F.lit(f"{name} is negative"))
    for name in AMOUNTS:
        if name in there:  # NaN compares greater than every number
            why = why.when(F.col(name) > AMOUNT_MAX, F.lit(f"{name} is too large"))
    if "kind" in there:
        why = why.when(~F.col("kind").isin(*LEDGER_FLOWS), F.lit("kind is unknown"))
    if {"from", "to"} <= there:
        why = why.when(F.col("to") <= F.col("from"), F.lit("to is not greater than from"))
    if "latency_counts" in there:
        added = F.aggregate("latency_counts", F.lit(0).cast("long"), F.try_add)
        why = why.when(F.size("latency_counts") != BUCKETS, F.lit("latency_counts does not have 8 numbers"))
        why = why.when(F.array_min("latency_counts") < 0, F.lit("latency_counts has a negative number"))
        differ = ~F.coalesce(added == F.col("requests"), F.lit(False))
        why = why.when(differ, F.lit("latency_counts do not add up to requests"))
    return why


BUCKETS: Final = 8
