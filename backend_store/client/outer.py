"""Re-exports what the out-cluster manager recorded, for gateways that show it."""

from backend_store.core.outer.clusters import Cluster, State
from backend_store.core.outer.limits import REPORT_MS_MAX
from backend_store.core.outer.managing import Event
from backend_store.core.outer.records import Holder, clusters_of, events_of, holder_of, proposed_of

__all__ = [
    "Cluster",
    "Event",
    "Holder",
    "REPORT_MS_MAX",
    "State",
    "clusters_of",
    "events_of",
    "holder_of",
    "proposed_of",
]
