"""The audit's first pass over large inputs: a single pass with almost nothing to shuffle, which names everything that
it cannot verify.

The rows of a log's hour are summed as they are read. If its ranges follow each other, all inner ends cancel out of the
sums, and the rest follows from the first and the last offset. Comparing the number of offsets in the rows with the
distance between those two shows that no row was counted twice. Sums over two hashes of each offset make it unlikely
(less than 1 in 10^11) that faults cancel out as well. A log's day that fails is audited range by range (`audit.py`);
only that second pass checks the order of ranges within an hour.

Partial sums add up: an hour may be spread over several files, and over several runs.
"""

from __future__ import annotations

from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark.transforms import sweep
from spark.transforms.audit import FLOWS, OTHER_IN, OTHER_OUT, PIECE, REPORTED
from spark.transforms.sweep import DAY_LOG, LOG
from spark.usage_schema import LEDGER_FLOWS

HASH_BITS: Final = 20
"""Bits of each of the two hashes. Sums of ordinary counts then fit into a long; a log whose sums overflow fails."""
_MASK: Final = (1 << HASH_BITS) - 1


def sums_of(ledger: DataFrame) -> DataFrame:
    """One row per `file`, day and hour of a log, from ledger rows whose `at` is text. `day` is null if invalid."""
    kind, count = F.col("kind"), F.col("count")
    is_held = kind == "held"
    ends = F.xxhash64(F.col("from")).bitwiseXOR(F.xxhash64(F.col("to")))
    sign = _sign(kind)
    added = ledger.groupBy("file", F.substring("at", 1, 13).alias("hour"), *LOG).agg(
        F.min("from").alias("from"),
        F.max("to").alias("to"),
        F.min("epoch").alias("epoch"),
        F.max("epoch").alias("epoch_last"),
        F.bit_xor(F.when(kind == "published", ends)).alias("ends_published"),
        F.bit_xor(F.when(is_held, ends)).alias("ends_held"),
        F.try_sum(F.when(kind == "published", F.col("to") - F.col("from"))).alias("offsets"),
        F.max(F.when(is_held, F.struct("to", count.alias("held")))).alias("last"),
        *[F.try_sum(_weighed(is_held, sign, count, n)).alias(f"chain_{n}") for n in (1, 2)],
        F.try_sum(F.when(sign != 0, sign * count)).alias("flow"),
        *[F.try_sum(F.when(kind == name, count)).alias(name) for name in REPORTED],
        F.try_sum(F.when(kind.isin(*OTHER_IN), count)).alias("other_in"),
        F.try_sum(F.when(kind.isin(*OTHER_OUT), count)).alias("other_out"),
    )
    return with_day(added)


def with_day(sums: DataFrame) -> DataFrame:
    """`sums` of hours with their `day`, which is null for an invalid hour."""
    return sums.withColumn("day", F.substring("hour", 1, 10).try_cast("date"))


def merged(sums: DataFrame) -> DataFrame:
    """One row per day and hour of a log. A sum that overflows is dropped, so that the totals do not match."""
    return sums.groupBy(*DAY_LOG, "hour").agg(
        *[F.min(name).alias(name) for name in ("from", "epoch")],
        *[F.max(name).alias(name) for name in ("to", "epoch_last", "last")],
        *[F.bit_xor(name).alias(name) for name in ("ends_published", "ends_held")],
        *[F.try_sum(name).alias(name) for name in ("offsets", "chain_1", "chain_2", "flow", *FLOWS)],
    )


def chunks_of(hours: DataFrame) -> DataFrame:
    """`PIECE` rows of hours, each present once; `is_odd` if its sums do not add up."""
    zero = F.lit(0).cast("long")
    at = F.unix_millis(F.try_to_timestamp(F.concat("hour", F.lit(":00:00Z")), F.lit("yyyy-MM-dd'T'HH:mm:ssX")))
    whole = hours.withColumns({name: F.coalesce(F.col(name), zero) for name in [*FLOWS, "flow"]})
    whole = whole.withColumns({"held": F.col("last")["held"], "at": at})
    whole = whole.withColumn("before", F.col("held") - F.col("flow"))
    return whole.select(*PIECE, _is_odd().alias("is_odd"))


def suspects_of(chunks: DataFrame) -> DataFrame:
    """The log days (`DAY_LOG`) that must be checked range by range."""
    odd = chunks.where("is_odd").select(*DAY_LOG)
    points = sweep.points_of(chunks, DAY_LOG)
    return odd.unionByName(sweep.findings_of(points, DAY_LOG).select(*DAY_LOG)).distinct()


def _sign(kind: Column) -> Column:
    out = [name for name, sign in LEDGER_FLOWS.items() if sign < 0]
    inward = [name for name, sign in LEDGER_FLOWS.items() if sign > 0]
    return F.when(kind.isin(*inward), F.lit(1)).when(kind.isin(*out), F.lit(-1)).otherwise(F.lit(0)).cast("long")


def _weight(offset: Column, n: int) -> Column:
    """A weight of at least 1, so that every offset counts."""
    mixed = F.xxhash64(offset)
    part = mixed if n == 1 else F.shiftrightunsigned(mixed, HASH_BITS)
    return part.bitwiseAND(F.lit(_MASK).cast("long")) + 1


def _weighed(is_held: Column, sign: Column, count: Column, n: int) -> Column:
    """What is held at a range's end, minus what was held at its start, each weighted by its offset."""
    start, end = _weight(F.col("from"), n), _weight(F.col("to"), n)
    return F.when(is_held, F.try_multiply(count, end - start)).when(sign != 0, F.try_multiply(sign * count, start))


def _is_odd() -> Column:
    ends = F.xxhash64(F.col("from")).bitwiseXOR(F.xxhash64(F.col("to")))
    checks = [
        F.col("ends_published") == ends,
        F.col("ends_held") == ends,
        F.col("offsets") == F.col("to") - F.col("from"),
        F.col("epoch") == F.col("epoch_last"),
        F.col("lost") == 0,
        F.col("unexplained") == 0,
    ]
    for n in (1, 2):
        left = F.try_multiply(F.col("held"), _weight(F.col("to"), n))
        right = F.try_multiply(F.col("held") - F.col("flow"), _weight(F.col("from"), n))
        checks.append(F.col(f"chain_{n}") == F.try_subtract(left, right))
    return ~F.coalesce(reduce(Column.__and__, checks), F.lit(False))
