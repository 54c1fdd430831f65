"""The Spark schemas of Pushq's usage files. Reading them needs nothing else of Pushq.

`docs/reference/usage-schema.md` explains each field. Spark skips fields that are not named here: they come from later
versions.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

LEDGER: Final = StructType(
    [
        StructField("version", LongType(), nullable=False),
        StructField("node", StringType(), nullable=False),
        StructField("tenant", StringType(), nullable=False),
        StructField("queue", StringType(), nullable=False),
        StructField("queue_uid", LongType(), nullable=False),
        StructField("partition", LongType(), nullable=False),
        StructField("epoch", LongType(), nullable=False),
        StructField("kind", StringType(), nullable=False),
        StructField("from", LongType(), nullable=False),
        StructField("to", LongType(), nullable=False),
        StructField("count", LongType(), nullable=False),
        StructField("bytes", LongType(), nullable=True),
        StructField("at", TimestampType(), nullable=False),
    ]
)

MINUTES: Final = StructType(
    [
        StructField("version", LongType(), nullable=False),
        StructField("node", StringType(), nullable=False),
        StructField("minute", TimestampType(), nullable=False),
        StructField("tenant", StringType(), nullable=False),
        StructField("principal", StringType(), nullable=False),
        StructField("queue", StringType(), nullable=False),
        StructField("operation", StringType(), nullable=False),
        StructField("transport", StringType(), nullable=False),
        StructField("outcome", StringType(), nullable=False),
        StructField("requests", LongType(), nullable=False),
        StructField("messages", LongType(), nullable=False),
        StructField("bytes_in", LongType(), nullable=False),
        StructField("bytes_out", LongType(), nullable=False),
        StructField("seconds", DoubleType(), nullable=False),
        StructField("latency_counts", ArrayType(LongType(), containsNull=False), nullable=False),
        StructField("lossy", BooleanType(), nullable=False),
    ]
)

CHANGE: Final = StructType(
    [
        StructField("field", StringType(), nullable=False),
        StructField("before", StringType(), nullable=True),
        StructField("after", StringType(), nullable=True),
    ]
)

AUDIT: Final = StructType(
    [
        StructField("version", LongType(), nullable=False),
        StructField("node", StringType(), nullable=False),
        StructField("seq", LongType(), nullable=False),
        StructField("at", TimestampType(), nullable=False),
        StructField("tenant", StringType(), nullable=False),
        StructField("principal", StringType(), nullable=False),
        StructField("name", StringType(), nullable=False),
        StructField("action", StringType(), nullable=False),
        StructField("target", StringType(), nullable=False),
        StructField("outcome", StringType(), nullable=False),
        StructField("status", LongType(), nullable=True),
        StructField("trace_id", StringType(), nullable=True),
        StructField("address", StringType(), nullable=True),
        StructField("changes", ArrayType(CHANGE, containsNull=False), nullable=False),
    ]
)

SCHEMAS: Final = {"ledger": LEDGER, "minutes": MINUTES, "audit": AUDIT}

KEYS: Final = {
    "ledger": ["node", "queue_uid", "partition", "kind", "from", "to"],
    "minutes": ["node", "minute", "tenant", "principal", "queue", "operation", "transport", "outcome"],
    "audit": ["node", "seq"],
}
"""Fields that identify a row: of equal rows, the ledger and the audit keep one; minutes are added up."""

LEDGER_FLOWS: Final = {
    "opening": 1,
    "published": 1,
    "moved_in": 1,
    "copied": 1,
    "settled": -1,
    "expired": -1,
    "overflowed": -1,
    "retired": -1,
    "cancelled": -1,
    "dropped": -1,
    "purged": -1,
    "moved_out": -1,
    "deleted": -1,
    "lost": -1,
    "dead_lettered": 0,
    "late": 0,
    "read": 0,
    "unexplained": 0,
    "held": 0,
}
"""The ledger's kinds, and whether messages of a kind add to those held (1), subtract from them (-1), or neither."""

LATENCY_SECONDS: Final = (0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0)
"""Upper bounds of `latency_counts`, in seconds; the last count is of everything slower."""
