from collections import Counter
from typing import Any

from msgspec.structs import replace

from backend_store.core.replication.record import DiskId, Incarnation, Mode, NodeId, first_record
from backend_store.shard.interface import ShardNumber
from backend_store.shard.placing import Modes, Plan, place, place_lane, successor

A, B, C, D = map(NodeId, "abcd")


def _placed(zones: dict[NodeId, str], count: int) -> list[Plan]:
    plans: list[Plan] = []
    for number in range(count):
        chosen = place(ShardNumber(number), plans, zones, replicas=2)
        assert chosen is not None
        plans.append(Plan(ShardNumber(number), chosen, 1))
    return plans


def test_replicas_stand_in_different_zones_and_leaders_are_spread() -> None:
    zones = {A: "east", B: "east", C: "west", D: "west"}
    plans = _placed(zones, 8)
    assert all(len({zones[node] for node in plan.replicas}) == 2 for plan in plans)
    assert Counter(plan.replicas[0] for plan in plans) == {A: 2, B: 2, C: 2, D: 2}
    assert Counter(node for plan in plans for node in plan.replicas) == {A: 4, B: 4, C: 4, D: 4}


def _modes(plans: list[Plan], mode: Mode = "sync", **counts: int) -> list[Mode]:
    """Of all shards, once those are placed that are not yet."""
    asked = Modes(mode, **counts)
    for number in range(len(plans), asked.shards + asked.async_shards):
        shard = ShardNumber(number)
        plans.append(Plan(shard, (A,), 1, asked.of(shard, plans)))
    return [plan.mode for plan in plans]


def test_the_shards_behind_the_others_are_those_for_queues_that_ask_for_async() -> None:
    assert _modes([], shards=3, async_shards=2) == ["sync", "sync", "sync", "async", "async"]
    assert _modes([], "async", shards=3, async_shards=0) == ["sync", "async", "async"]
    assert _modes([], "async", shards=1, async_shards=0) == ["async"]


def test_a_cluster_that_gets_more_shards_has_as_many_of_each_mode_as_it_was_told() -> None:
    plans: list[Plan] = []
    _modes(plans, shards=2, async_shards=1)
    assert _modes(plans, shards=5, async_shards=1) == ["sync", "sync", "async", "sync", "sync", "sync"]
    assert _modes(plans, shards=5, async_shards=2).count("async") == 2


def test_nothing_is_placed_on_too_few_nodes() -> None:
    assert place(ShardNumber(0), [], {A: ""}, replicas=2) is None


def test_leader_leaves_when_it_drains_or_when_its_home_is_ready() -> None:
    disks = {node: DiskId(node) for node in (A, B, C)}
    record = replace(first_record(0, disks, min_in_sync=2), leader=B, leader_inc=Incarnation(1))
    alive = {A, B, C}
    here: dict[str, Any] = {"alive": alive, "wanted": (A, B, C), "draining": set()}
    assert successor(record, B, **here, home_ready=False) is None
    assert successor(record, B, **here, home_ready=True) == A
    assert successor(record, B, **here | {"draining": {B}}, home_ready=False) == A
    assert successor(record, B, **here | {"draining": {A, B}}, home_ready=True) == C
    assert successor(record, B, **here | {"draining": {B}, "alive": {B}}, home_ready=True) is None
    assert successor(replace(record, isr=(B,)), B, **here | {"draining": {B}}, home_ready=True) is None


def test_leader_that_shall_not_keep_the_shard_gives_it_to_one_that_shall_and_has_it() -> None:
    disks = {node: DiskId(node) for node in (A, B, C)}
    record = replace(first_record(0, disks, min_in_sync=2), leader=B, leader_inc=Incarnation(1))
    here: dict[str, Any] = {"alive": {A, B, C, D}, "draining": set(), "home_ready": False}
    assert successor(record, B, wanted=(D, C, A), **here) == C
    assert successor(record, B, wanted=(D,), **here) is None, "D has nothing yet"


def _laned(zones: dict[NodeId, str], plans: dict[ShardNumber, Plan], lanes: int) -> dict[ShardNumber, Plan]:
    for number in map(ShardNumber, range(lanes)):
        if number not in plans:
            holders = place_lane(number, plans, zones, lanes=lanes, holders_max=2, min_in_sync=2)
            assert holders is not None
            plans[number] = Plan(number, holders, 2, lanes=lanes)
    return plans


def test_each_lane_has_a_host_of_its_own_and_its_neighbour_in_another_zone() -> None:
    zones = {A: "east", B: "east", C: "west", D: "west"}
    plans = _laned(zones, {}, 4)
    assert sorted(plan.replicas[0] for plan in plans.values()) == [A, B, C, D]
    assert all(zones[plan.replicas[0]] != zones[plan.replicas[1]] for plan in plans.values())


def test_no_lane_is_placed_before_all_its_hosts_are_there() -> None:
    assert place_lane(ShardNumber(0), {}, {A: "", B: ""}, lanes=3, holders_max=2, min_in_sync=2) is None


def test_who_goes_on_placing_lanes_leaves_those_that_have_a_host() -> None:
    zones = {B: "", C: "", D: ""}
    first = Plan(ShardNumber(0), (D, A), 2, lanes=3)
    plans = _laned(zones, {ShardNumber(0): first}, 3)
    assert plans[ShardNumber(0)] == first
    assert [plan.replicas[0] for plan in plans.values()] == [D, B, C]
    assert {plan.replicas[1] for plan in plans.values()} == {A, C, D}
