"""`capacity_plan`: load and cost expected of each queue and the cluster, and a plan of partitions and moves as JSON."""

from __future__ import annotations

import json
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark.jobs import plan_file
from spark.jobs.arguments import above_zero, from_zero, whole
from spark.jobs.durable import write_whole
from spark.jobs.reading import BadFolder
from spark.jobs.tables import Tables
from spark.transforms import capacity


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--from", dest="source", type=Path, required=True, help="Folder of the `usage_rollup` tables.")
    parser.add_argument("--to", dest="to", type=Path, required=True, help="Folder to write the table and plan.json to.")
    parser.add_argument("--prices", type=Path, help='JSON: {"per_million_messages": 0.4, "per_gigabyte": 0.09}.')
    parser.add_argument("--storage-bytes", type=whole, default=100_000_000_000, help="The cluster's storage capacity.")
    parser.add_argument(
        "--per-partition", type=above_zero, default=5_000.0, help="Messages per second that one can handle."
    )
    parser.add_argument("--placements", type=Path, help="JSON: a list of the current {uid, partition, cluster}.")
    parser.add_argument("--clusters", nargs="*", default=[], help="Further clusters that may host queues.")


def run(session: SparkSession, options: Namespace) -> dict[str, Any]:
    """Returns the number of queues, and how many partition changes and moves are proposed."""
    with Tables(session, options.source).still():
        return _made(session, options)


def _made(session: SparkSession, options: Namespace) -> dict[str, Any]:
    flows = Tables(session, options.source).read("flows")
    if flows is None:
        raise BadFolder(f"--from {options.source}: there is no table `flows`; run usage_rollup first")
    if not all(options.clusters):
        raise BadFolder("--clusters: empty name; list the names of clusters, or leave the option out")
    prices, placed = _prices(options.prices), _placements(options.placements)
    found = capacity.with_held_growth(capacity.queues(flows), flows)
    found = capacity.with_days_left(found, storage_bytes=options.storage_bytes)
    found = capacity.with_advice(found, per_partition_per_second=options.per_partition)
    found = capacity.with_cost(found, **prices)
    path = str(options.to / "capacity")
    found.write.mode("overwrite").parquet(path)
    written = session.read.parquet(path)
    heaviest = written.orderBy(F.desc("peak_per_second"), "queue_uid")
    wider = heaviest.where("partitions_wanted > partitions and not is_skewed").limit(plan_file.PROPOSALS_MAX).collect()
    hot = heaviest.where("is_hot").limit(plan_file.PROPOSALS_MAX).collect()
    plan = plan_file.proposed([row.asDict() for row in wider], [row.asDict() for row in hot], placed, options.clusters)
    write_whole(options.to / "plan.json", plan_file.written(plan))
    return {
        "queues": written.count(),
        "hot": len(hot),
        "too_narrow": len(wider),
        "partitions": len(plan["partitions"]),
        "moves": len(plan["moves"]),
    }


def _placements(path: Path | None) -> list[plan_file.Placed]:
    if path is None:
        return []
    try:
        return plan_file.placements(json.loads(path.read_text()))
    except (OSError, ValueError) as error:
        raise BadFolder(f"--placements {path}: {error}") from None


def _prices(path: Path | None) -> dict[str, float]:
    names = ("per_million_messages", "per_gigabyte")
    if path is None:
        return dict.fromkeys(names, 0.0)
    try:
        given = json.loads(path.read_text())
        return {name: from_zero(str(given[name])) for name in names}
    except (OSError, ValueError, KeyError, TypeError, ArgumentTypeError) as error:
        raise BadFolder(f"--prices {path}: it needs the numbers {' and '.join(names)}: {error!r}") from None


if __name__ == "__main__":
    from spark.jobs.main import main_of

    main_of(__file__)
