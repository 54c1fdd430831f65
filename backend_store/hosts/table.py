"""A host's lane table, read from the coordinator's records: each lane is a shard that is at home with its host.

The shard's plan says whose lane it is and which hosts hold it; its record says which host owns it, in which epoch, and
which are in sync. So the table is as new as the coordinator's last news; the lane's epoch fences an owner, not the
table.
"""

from __future__ import annotations

from collections.abc import Sequence

from backend_store.core.host_lanes.table import LaneRow, LaneTable, Owner
from backend_store.core.partitions.slots import first_table
from backend_store.core.replication.record import NodeId, PartitionRecord
from backend_store.shard.interface import ShardNumber
from backend_store.shard.placing import Plan
from backend_store.shard.view import ClusterView
from backend_store.wire.store_frames import BackendAt, Copies


def table_of(view: ClusterView, lanes: int) -> LaneTable | None:
    """None until all lanes are founded, as far as is known here."""
    rows: dict[int, LaneRow] = {}
    for number in range(lanes):
        plan, record = view.plans.get(ShardNumber(number)), view.records.get(ShardNumber(number))
        if plan is None or record is None:
            return None
        rows[number] = LaneRow(
            _home(plan, record),
            plan.replicas,
            Owner(record.leader, record.leader_inc) if record.leader is not None else None,
            record.epoch,
            record.isr,
            record.elr,
            version=record.version,
        )
    version = sum(row.version for row in rows.values())  # each change of a record is one
    return LaneTable(version, first_table(lanes), rows, min(view.plans[ShardNumber(n)].min_in_sync for n in rows))


def there(view: ClusterView, lanes: int) -> Sequence[BackendAt]:
    """The registered backends, by name, as sent to gateways. `lanes`: 0 except for independent hosts."""
    table = table_of(view, lanes) if lanes else None
    at_home = {row.preferred for row in table.lanes.values() if row.is_home} if table is not None else set()
    return [BackendAt(name, row.service, name in at_home) for name, row in sorted(view.nodes.items()) if row.service]


def copies(view: ClusterView, shards: int) -> list[Copies]:
    """How shards are replicated, by their numbers. `shards`: the planned number; there are more where the settings
    asked for more before."""
    plans = [view.plans.get(ShardNumber(number)) for number in range(max([shards, *(one + 1 for one in view.plans)]))]
    return [Copies(one.mode, len(one.replicas), one.min_in_sync) if one is not None else Copies() for one in plans]


def _home(plan: Plan, record: PartitionRecord) -> NodeId:
    """A host that is replaced while it serves stays at home until it hands its lane over, and until then takes
    publishes without a key."""
    host = record.replicas[0]
    return host if host == record.leader and host not in plan.replicas else plan.replicas[0]
