"""Plan files, for the command line: parses, checks and writes them."""

from backend_store.core.outer.limits import PLAN_BYTES_MAX
from backend_store.core.outer.plans import (
    NO_PLAN,
    Plan,
    PlannedMove,
    PlannedPartitions,
    check_clusters,
    check_queues,
    parse,
    written,
)

__all__ = [
    "NO_PLAN",
    "PLAN_BYTES_MAX",
    "Plan",
    "PlannedMove",
    "PlannedPartitions",
    "check_clusters",
    "check_queues",
    "parse",
    "written",
]
