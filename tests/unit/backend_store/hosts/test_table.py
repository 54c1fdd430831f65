from msgspec.structs import replace

from backend_store.core.host_lanes.table import Owner
from backend_store.core.replication.record import DiskId, Incarnation, NodeId, first_record
from backend_store.hosts.table import copies, table_of, there
from backend_store.model import Epoch
from backend_store.shard.interface import ShardNumber
from backend_store.shard.placing import Plan
from backend_store.shard.registry import NodeRow
from backend_store.shard.view import ClusterView
from backend_store.wire.store_frames import BackendAt, Copies

A, B, C = map(NodeId, "abc")


def view() -> ClusterView:
    made = ClusterView()
    for number, holders in enumerate([(A, B), (B, C), (C, A)]):
        shard = ShardNumber(number)
        made.plans[shard] = Plan(shard, holders, 2, lanes=3)
        record = first_record(number, {node: DiskId(node) for node in holders}, min_in_sync=2)
        made.records[shard] = replace(record, leader=holders[0], leader_inc=Incarnation(1), epoch=Epoch(1))
    return made


def test_there_is_no_table_until_all_lanes_are_founded() -> None:
    known = view()
    del known.records[ShardNumber(2)]
    assert table_of(known, 3) is None


def test_whose_a_lane_is_comes_from_its_plan_and_who_owns_it_from_its_record() -> None:
    known = view()
    first = table_of(known, 3)
    assert first is not None
    assert [row.preferred for row in first.lanes.values()] == [A, B, C]
    assert all(row.is_home for row in first.lanes.values())
    shard = ShardNumber(0)
    adopted = replace(known.records[shard], leader=B, leader_inc=Incarnation(7), epoch=Epoch(2), isr=(B,), elr=(A,))
    known.records[shard] = replace(adopted, version=adopted.version + 1)
    after = table_of(known, 3)
    assert after is not None
    row = after.lanes[0]
    assert (row.preferred, row.owner, row.epoch, row.is_home) == (A, Owner(B, 7), 2, False)
    assert (row.in_sync, row.eligible) == ((B,), (A,))
    assert after.version > first.version
    assert after.slots == first.slots


def test_a_host_that_is_followed_is_at_home_in_its_lane_until_it_hands_that_over() -> None:
    known, lane = view(), ShardNumber(0)
    known.plans[lane] = replace(known.plans[lane], replicas=(C, B))
    copied = replace(known.records[lane], replicas=(A, B, C))
    for in_sync in ((A, B), (A, B, C)):
        known.records[lane] = replace(copied, isr=in_sync)
        before = table_of(known, 3)
        assert before is not None and (before.lanes[0].preferred, before.lanes[0].is_home) == (A, True)
    known.records[lane] = replace(copied, isr=(A, B, C), leader=C)
    after = table_of(known, 3)
    assert after is not None and (after.lanes[0].preferred, after.lanes[0].is_home) == (C, True)


def test_who_has_adopted_the_lane_of_a_host_that_is_gone_is_not_at_home_there_while_the_heir_copies_it() -> None:
    known, lane = view(), ShardNumber(0)
    known.plans[lane] = replace(known.plans[lane], replicas=(C, B))
    known.records[lane] = replace(known.records[lane], replicas=(B, C), leader=B, isr=(B,))
    after = table_of(known, 3)
    assert after is not None and (after.lanes[0].preferred, after.lanes[0].is_home) == (C, False)
    assert after.lane_of(B) == 1


def test_gateways_are_told_who_is_there_and_owns_the_lane_that_is_its_own() -> None:
    known, d = view(), NodeId("d")
    for number, node in enumerate((d, C, B, A)):
        known.nodes[node] = NodeRow(node, Incarnation(1), "", "", f"{node}:{number}", "", {})
    known.nodes[NodeId("e")] = NodeRow(NodeId("e"), Incarnation(1), "", "", "", "", {})  # serves nobody
    lane = ShardNumber(0)
    known.records[lane] = replace(known.records[lane], leader=B)
    assert there(known, 3) == [
        BackendAt("a", "a:3"),
        BackendAt("b", "b:2", True),
        BackendAt("c", "c:1", True),
        BackendAt("d", "d:0"),
    ]
    assert [one.name for one in there(known, 0) if one.has_lane] == []
    del known.nodes[A]
    assert [one.name for one in there(known, 3)] == ["b", "c", "d"]


def test_how_a_shard_is_copied_is_said_also_where_the_settings_know_it_no_more() -> None:
    known = ClusterView()
    for number, mode in enumerate(("sync", "sync", "async")):
        known.plans[ShardNumber(number)] = Plan(ShardNumber(number), (A, B, C), 2, mode)  # type: ignore[arg-type]
    placed = [Copies("sync", 3, 2), Copies("sync", 3, 2), Copies("async", 3, 2)]
    assert copies(known, 5) == [*placed, Copies(), Copies()]
    assert copies(known, 2) == placed, "it takes queues as long as it is there"
    assert copies(ClusterView(), 1) == [Copies()]
