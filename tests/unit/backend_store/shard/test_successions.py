"""Who takes the place of an independent host, of a cluster that is written down by hand."""

from __future__ import annotations

import msgspec

from backend_store.core.replication.record import NodeId
from backend_store.shard.interface import ShardNumber
from backend_store.shard.members import Member
from backend_store.shard.rounds import Patience
from backend_store.shard.successions import Succession, due, heirs
from backend_store.shard.view import ClusterView
from tests.unit.backend_store.shard.test_rounds import NOW_MS, PATIENCE, A, B, C, D, E, view_of

LANES = [(A, B, C), (B, C, A), (C, A, B)]


def hosts(*here: NodeId, away: dict[NodeId, int] | None = None, plans: list[tuple[NodeId, ...]] = LANES) -> ClusterView:
    view = view_of(*here, away=away, plans=plans)
    view.plans = {lane: msgspec.structs.replace(plan, lanes=len(plans)) for lane, plan in view.plans.items()}
    return view


def follow(view: ClusterView, patience: Patience = PATIENCE) -> Succession | None:
    """The succession that is due; its plans are the cluster's from then on."""
    found = due(view, patience, NOW_MS)
    if found is not None:
        view.plans.update(found.plans)
    return found


def replicas(view: ClusterView) -> list[tuple[NodeId, ...]]:
    return [plan.replicas for plan in view.plans.values()]


def test_a_host_that_is_away_for_too_long_is_followed_in_all_its_lanes_and_not_before() -> None:
    assert due(hosts(A, B, D, away={C: 299}), PATIENCE, NOW_MS) is None
    view = hosts(A, B, D, away={C: 301})
    found = follow(view)
    assert found is not None and (found.host, found.heir) == (C, D)
    assert replicas(view) == [(A, B, D), (B, D, A), (D, A, B)]
    lanes = map(ShardNumber, range(3))
    assert [found.why(lane, view) for lane in lanes] == [
        "d makes a copy of lane 0, in the place of c: it has been away for too long",
        "d makes a copy of lane 1, in the place of c: it has been away for too long",
        "lane 2 is d's from now on, in the place of c: it has been away for too long",
    ]
    assert follow(view) is None, "it has nothing any more"
    assert due(hosts(A, B, D, away={C: 301}), Patience(0, 60), NOW_MS) is None, "0: never"


def test_without_a_host_that_has_nothing_nobody_is_followed() -> None:
    assert heirs(hosts(A, B, away={C: 301})) == []
    assert follow(hosts(A, B, away={C: 301})) is None


def test_who_drains_or_is_to_go_itself_follows_nobody() -> None:
    for leaving in ("drains", "removals"):
        view = hosts(A, B, D, away={C: 301})
        getattr(view, leaving).add(D)
        assert follow(view) is None


def test_one_that_is_to_be_removed_is_followed_when_all_copies_are_there() -> None:
    view = hosts(A, B, C, D)
    view.removals.add(A)
    short = view.records[ShardNumber(1)]
    view.records[ShardNumber(1)] = type(short)(1, short.replicas, 2, isr=(B, C))
    assert follow(view) is None
    view.records[ShardNumber(1)] = short
    found = follow(view)
    assert found is not None and found.why(ShardNumber(0), view).endswith("in the place of a: it is to be removed")
    assert replicas(view) == [(D, B, C), (B, C, D), (C, D, B)]


def test_one_that_is_gone_and_to_be_removed_is_followed_at_once() -> None:
    view = hosts(A, B, D, away={C: 1})
    view.removals.add(C)
    assert follow(view) is not None


def test_two_that_are_gone_are_followed_by_two_in_turn() -> None:
    view = hosts(A, D, E, away={B: 400, C: 400})
    heir_of = {found.host: found.heir for found in (follow(view), follow(view)) if found is not None}
    assert heir_of == {B: D, C: E}
    assert replicas(view) == [(A, D, E), (D, E, A), (E, A, D)]
    assert follow(view) is None


def test_the_heir_stands_in_another_zone_than_the_others_where_there_is_one() -> None:
    view = hosts(A, B, D, E, away={C: 301})
    view.nodes[D] = msgspec.structs.replace(view.nodes[D], zone="zone-a")
    found = follow(view)
    assert found is not None and found.heir == E


def test_before_all_lanes_are_founded_hosts_are_kept_for_those() -> None:
    view = hosts(A, B, D, away={C: 301})
    view.plans = {lane: msgspec.structs.replace(plan, lanes=4) for lane, plan in view.plans.items()}
    assert follow(view) is None


def test_a_host_that_comes_back_after_it_was_followed_has_nothing_and_may_follow_another() -> None:
    view = hosts(A, B, D, away={C: 301})
    follow(view)
    view.records = hosts(A, B, D, plans=replicas(view)).records  # its copies have been made
    view.nodes[C] = msgspec.structs.replace(view.nodes[A], name=C)
    view.members[C] = Member(C, "zone-c", is_here=True, since_ms=NOW_MS)
    assert heirs(view) == [C]
    view.removals.add(A)
    found = follow(view)
    assert found is not None and (found.host, found.heir) == (A, C)
