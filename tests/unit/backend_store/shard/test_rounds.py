"""What is moved when, of a cluster that is written down by hand."""

from __future__ import annotations

from backend_store.core.placement.values import CopyMoved, LeadMoved
from backend_store.core.replication.record import DiskId, Incarnation, NodeId, first_record
from backend_store.shard.interface import ShardNumber
from backend_store.shard.members import Member
from backend_store.shard.placing import Plan
from backend_store.shard.registry import NodeRow
from backend_store.shard.rounds import Patience, due, planned, why
from backend_store.shard.view import ClusterView

A, B, C, D, E = map(NodeId, "abcde")
NOW_MS = 10_000_000
PATIENCE = Patience(replace_after_s=300, rebalance_after_s=60)


def view_of(*here: NodeId, away: dict[NodeId, int] | None = None, plans: list[tuple[NodeId, ...]]) -> ClusterView:
    """All who are here came long ago; `away`: for how many seconds. All replicas are in sync but those away."""
    view = ClusterView()
    for node in here:
        view.nodes[node] = NodeRow(node, Incarnation(1), f"zone-{node}", "", "", "", {})
        view.members[node] = Member(node, f"zone-{node}", is_here=True, since_ms=0)
    for node, seconds in (away or {}).items():
        view.members[node] = Member(node, f"zone-{node}", is_here=False, since_ms=NOW_MS - seconds * 1000)
    for number, replicas in enumerate(plans):
        shard = ShardNumber(number)
        view.plans[shard] = Plan(shard, replicas, 2)
        record = first_record(number, {node: DiskId(node) for node in replicas}, min_in_sync=2)
        in_sync = tuple(node for node in replicas if node in here)
        view.records[shard] = type(record)(number, replicas, 2, isr=in_sync)
    return view


def copies(view: ClusterView, *, is_asked: bool = False, patience: Patience = PATIENCE) -> list[CopyMoved]:
    found = due(view, patience, NOW_MS, is_asked=is_asked)
    return [move for move in found if isinstance(move, CopyMoved)]


def test_copies_of_a_node_that_is_away_too_long_are_made_elsewhere_and_not_before() -> None:
    assert copies(view_of(A, B, D, away={C: 299}, plans=[(A, B, C)])) == []
    late = view_of(A, B, D, away={C: 301}, plans=[(A, B, C)])
    assert copies(late) == [CopyMoved(0, D, C)]
    assert planned(late.plans, copies(late))[ShardNumber(0)].replicas == (A, B, D)
    assert "away for too long" in why(CopyMoved(0, D, C), late, is_asked=False)
    assert copies(late, patience=Patience(0, 60)) == [], "0: never"


def test_copies_that_are_away_are_missing_and_so_are_those_of_a_shard_that_has_no_record() -> None:
    view = view_of(A, B, D, away={C: 1}, plans=[(A, B, C), (A, B, D)])
    assert view.copies_missing == 1
    del view.records[ShardNumber(1)]
    assert view.copies_missing == 4


def test_what_is_lost_is_replaced_while_other_moves_are_under_way() -> None:
    view = view_of(A, B, D, E, away={C: 301}, plans=[(A, B, C), (A, B, D)])
    view.records[ShardNumber(1)] = type(view.records[ShardNumber(1)])(1, (A, B), 2, isr=(A, B))
    assert [(move.shard, move.source) for move in copies(view)] == [(0, C)]


def test_a_node_that_came_gets_its_share_after_some_time_or_when_it_is_asked_for() -> None:
    view = view_of(A, B, C, D, plans=[(A, B, C)] * 4)
    assert {move.to for move in copies(view)} == {D}
    view.members[D] = Member(D, "zone-d", is_here=True, since_ms=NOW_MS - 59_000)
    assert copies(view) == []
    assert {move.to for move in copies(view, is_asked=True)} == {D}
    assert copies(view, patience=Patience(300, 0)) == [], "0: only when asked"


def test_nothing_is_evened_out_while_somebody_is_away() -> None:
    assert copies(view_of(A, B, C, D, away={E: 5}, plans=[(A, B, C)] * 4)) == []


def test_copies_of_one_that_is_to_be_removed_move_when_nothing_else_does() -> None:
    view = view_of(A, B, C, D, plans=[(A, B, C)])
    view.removals.add(B)
    assert copies(view) == [CopyMoved(0, D, B)]
    view.records[ShardNumber(0)] = type(view.records[ShardNumber(0)])(0, (A, B, C), 2, isr=(A, B))
    assert copies(view) == []


def test_one_that_is_to_be_removed_and_is_away_is_not_waited_for() -> None:
    view = view_of(A, B, D, away={C: 1}, plans=[(A, B, C)])
    view.removals.add(C)
    assert copies(view) == [CopyMoved(0, D, C)]


def test_one_that_drains_keeps_its_copies_and_gets_none() -> None:
    view = view_of(A, B, C, D, plans=[(A, B, C)] * 4)
    view.drains.add(D)
    assert copies(view, is_asked=True) == []
    view = view_of(A, B, C, D, plans=[(A, B, C)] * 4)
    view.drains.add(A)
    assert A not in {move.source for move in copies(view, is_asked=True)}


def test_leaderships_are_evened_out_by_who_stands_first() -> None:
    view = view_of(A, B, C, plans=[(A, B, C)] * 3)
    moves = due(view, PATIENCE, NOW_MS, is_asked=False)
    assert moves and all(isinstance(move, LeadMoved) for move in moves)
    after = planned(view.plans, moves)
    homes = [after.get(shard, plan).replicas[0] for shard, plan in view.plans.items()]
    assert sorted(homes) == [A, B, C]
