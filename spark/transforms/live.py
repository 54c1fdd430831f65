"""Live usage: requests, messages and bytes per minute, and the page with the last hour.

Rows of a minute replace the earlier ones, so processing the same rows again changes nothing.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from spark.transforms.quality import reason
from spark.usage_schema import SCHEMAS

KEYS: Final = ("tenant", "queue", "operation", "outcome")
SUMS: Final = ("requests", "messages", "bytes_in", "bytes_out", "seconds")
SHOWN_MINUTES: Final = 60
"""How many minutes a page covers."""
SHOWN_QUEUES_MAX: Final = 200
"""The most rows of queue, operation and outcome on a tenant's page; those with the most requests are kept."""
_OTHER: Final = "other"
"""Stands for all names in a minute that had more rows than are kept; such rows belong to no tenant."""


def live(minutes: DataFrame, late: str) -> DataFrame:
    """Requests, messages and bytes per minute, tenant, queue, operation and outcome.

    Leaves out minutes in the future, which come from a clock that is ahead: they would advance the watermark, and
    everything that others count would be late until that time.
    """
    names = [field.name for field in SCHEMAS["minutes"].fields]
    good = minutes.where(reason("minutes", names).isNull()).where("operation <> 'start'")
    good = good.where(F.col("minute") <= F.current_timestamp() + F.expr(f"interval {late}"))
    window = F.window("minute", "1 minute")
    sums = [F.sum(name).alias(name) for name in SUMS]
    added = good.withWatermark("minute", late).groupBy(window, *KEYS).agg(*sums)
    return added.select(F.to_date("window.start").alias("day"), F.col("window.start").alias("minute"), *KEYS, *SUMS)


def of_tenants(minutes: DataFrame) -> DataFrame:
    """Leaves out rows in which several tenants were merged."""
    return minutes.where((F.col("tenant") != _OTHER) | (F.col("principal") != _OTHER))


def brought_up_to_date(before: DataFrame, changed: DataFrame, last: str) -> DataFrame:
    """The rows of `live` with the changed ones replaced, for the hour that ends with the minute `last` (RFC 3339)."""
    key = ["minute", *KEYS]
    rows = before.join(changed.select(*key), key, "left_anti").unionByName(changed)
    return rows.where(F.col("minute") > F.to_timestamp(F.lit(last)) - F.expr(f"interval {SHOWN_MINUTES} minutes"))


def page_of(rows: DataFrame) -> DataFrame:
    """The rows of a tenant's page: `row` is `minute` or `queue`, and `rows` is the total number of `queue` rows."""
    sums = [F.sum(name).alias(name) for name in SUMS]
    minutes = rows.groupBy("tenant", "minute").agg(*sums).withColumn("row", F.lit("minute"))
    tenant = Window.partitionBy("tenant")
    order = tenant.orderBy(F.desc("requests"), "queue", "operation", "outcome")
    queues = (
        rows.groupBy(*KEYS)
        .agg(*sums)
        .withColumns({"rows": F.count(F.lit(1)).over(tenant), "rank": F.row_number().over(order)})
        .where(F.col("rank") <= SHOWN_QUEUES_MAX)
        .withColumn("row", F.lit("queue"))
    )
    return minutes.unionByName(queues.drop("rank"), allowMissingColumns=True)
