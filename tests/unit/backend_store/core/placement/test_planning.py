"""Placement: what is lost is replaced, zones and loads are evened out, and what was planned is not planned back."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend_store.core.placement.limits import COPIES_MOVED_PER_ROUND_MAX, IMBALANCE_TOLERATED
from backend_store.core.placement.planning import plan
from backend_store.core.placement.values import CopyDropped, CopyMoved, LeadMoved, Node, Shard, applied
from tests.support.seeds import examples

ROUNDS_MAX = 200


def settled(nodes: list[Node], shards: list[Shard]) -> list[Shard]:
    """After as many rounds as it takes."""
    for _ in range(ROUNDS_MAX):
        moves = plan(nodes, shards)
        if not moves:
            return shards
        shards = applied(shards, moves)
    raise AssertionError(f"still moving after {ROUNDS_MAX} rounds: {moves[:5]}")


def three_zones(per_zone: int = 1) -> list[Node]:
    return [Node(f"{zone}{number}", zone) for zone in "abc" for number in range(per_zone)]


def even(nodes: list[Node], count: int, copies: int = 3) -> list[Shard]:
    return settled(nodes, [Shard(number, (), None, copies_wanted=copies) for number in range(count)])


def test_new_shards_get_copies_in_every_zone_and_a_leader_that_has_one() -> None:
    shards = even(three_zones(2), 12)
    assert all({name[0] for name in shard.copies} == set("abc") for shard in shards)
    assert all(shard.leader in shard.copies for shard in shards)
    leads = Counter(shard.leader for shard in shards)
    assert max(leads.values()) - min(leads.values()) <= 1


def test_copies_of_a_dead_node_are_made_anew_at_once_however_many() -> None:
    nodes = three_zones(2)
    shards = even(nodes, 60)
    dead = [Node(node.name, node.zone, is_alive=node.name != "a0") for node in nodes]
    lost = sum("a0" in shard.copies for shard in shards)
    moves = plan(dead, shards)
    replaced = [move for move in moves if isinstance(move, CopyMoved) and move.source == "a0"]
    assert len(replaced) == lost > COPIES_MOVED_PER_ROUND_MAX
    after = settled(dead, shards)
    assert all("a0" not in shard.copies and shard.leader != "a0" for shard in after)
    assert all({name[0] for name in shard.copies} == set("abc") for shard in after)


def test_a_drained_node_is_emptied_a_few_copies_at_a_time_and_leads_nothing() -> None:
    nodes = three_zones(2)
    shards = even(nodes, 60)
    draining = [Node(node.name, node.zone, is_draining=node.name == "b1") for node in nodes]
    first = applied(shards, plan(draining, shards))
    moved = sum(set(one.copies) != set(two.copies) for one, two in zip(shards, first, strict=True))
    assert 0 < moved <= COPIES_MOVED_PER_ROUND_MAX
    assert all(shard.leader != "b1" for shard in first if "b1" in shard.copies)
    assert all("b1" not in shard.copies for shard in settled(draining, shards))


@pytest.mark.parametrize("count", [4, 20])
def test_a_node_that_joins_takes_its_share_and_nobody_else_moves(count: int) -> None:
    nodes = [Node(f"n{number}") for number in range(count)]
    before = even(nodes, 20 * count, copies=2)
    after = settled([*nodes, Node("new")], before)
    moved = sum(len(set(two.copies) - set(one.copies)) for one, two in zip(before, after, strict=True))
    taken = sum("new" in shard.copies for shard in after)
    assert taken == moved, "only towards the new one"
    copies = 40 * count
    assert copies / (count + 1) * 0.6 <= taken <= 1.5 * copies / (count + 1)


def test_a_node_with_twice_the_capacity_carries_twice_as_much() -> None:
    nodes = [Node("big", capacity=2.0), Node("one"), Node("two")]
    shards = even(nodes, 100, copies=1)
    assert 45 <= sum(shard.copies == ("big",) for shard in shards) <= 55


def test_heavy_shards_are_spread_by_weight_and_not_by_number() -> None:
    nodes = [Node("a"), Node("b")]
    shards = [Shard(0, ("a",), "a", 10.0, 1), *(Shard(n, ("a",), "a", 1.0, 1) for n in range(1, 11))]
    after = settled(nodes, shards)
    load = Counter[str]()
    for shard in after:
        load[shard.copies[0]] += int(shard.weight)
    assert abs(load["a"] - load["b"]) <= 4


def test_with_one_node_nothing_can_move_and_the_shards_are_led() -> None:
    shards = even([Node("only")], 3)
    assert all(shard.copies == ("only",) and shard.leader == "only" for shard in shards)
    assert plan([Node("only")], shards) == []


def test_what_is_nearly_even_is_left_alone() -> None:
    nodes = [Node("a"), Node("b")]
    shards = [Shard(n, ("a",) if n < 51 else ("b",), "a" if n < 51 else "b", copies_wanted=1) for n in range(100)]
    assert plan(nodes, shards) == []


def test_copies_beyond_those_wanted_go_and_never_the_leader() -> None:
    nodes = [Node("a"), Node("b"), Node("c")]
    moves = plan(nodes, [Shard(0, ("a", "b", "c", "gone"), "a", copies_wanted=2)])
    assert [type(move) for move in moves] == [CopyDropped, CopyDropped]
    (after,) = applied([Shard(0, ("a", "b", "c", "gone"), "a", copies_wanted=2)], moves)
    assert len(after.copies) == 2 and "a" in after.copies and "gone" not in after.copies


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[Node], list[Shard]]:
    count = draw(st.integers(1, 7))
    nodes = [
        Node(
            f"n{number}",
            draw(st.sampled_from("abc")),
            is_alive=draw(st.integers(0, 9)) > 0,
            is_draining=draw(st.integers(0, 9)) == 0,
            capacity=draw(st.sampled_from((1.0, 1.0, 2.0))),
        )
        for number in range(count)
    ]
    names = [*(node.name for node in nodes), "gone"]
    shards = []
    for id in range(draw(st.integers(0, 20))):
        copies = tuple(draw(st.lists(st.sampled_from(names), unique=True, max_size=3)))
        leader = draw(st.sampled_from((*copies, None)))
        shards.append(Shard(id, copies, leader, draw(st.sampled_from((0.5, 1.0, 1.0, 3.0))), draw(st.integers(1, 3))))
    return nodes, shards


@settings(max_examples=examples(25, exploring=60))
@given(worlds())
def test_from_anywhere_rounds_end_and_then_nothing_is_planned(world: tuple[list[Node], list[Shard]]) -> None:
    nodes, shards = world
    after = settled(nodes, shards)
    assert plan(nodes, after) == []
    able = {node.name for node in nodes if node.is_alive and not node.is_draining}
    there = {node.name for node in nodes if node.is_alive}
    for shard in after:
        assert len(set(shard.copies)) == len(shard.copies)
        if len(able) >= shard.copies_wanted:
            assert len(shard.copies) >= shard.copies_wanted and set(shard.copies) <= there
        if set(shard.copies) & able:
            assert shard.leader in shard.copies and shard.leader in able


@settings(max_examples=examples(25, exploring=60))
@given(worlds())
def test_a_round_is_bounded_and_moves_a_copy_once(world: tuple[list[Node], list[Shard]]) -> None:
    nodes, shards = world
    alive = {node.name for node in nodes if node.is_alive}
    takers = {node.name for node in nodes if node.is_alive and not node.is_draining}
    moves = plan(nodes, shards)
    by_choice = [move for move in moves if isinstance(move, CopyMoved) and move.source in alive]
    assert len(by_choice) <= COPIES_MOVED_PER_ROUND_MAX
    assert all(move.to in takers for move in moves if not isinstance(move, CopyDropped))
    assert len({move.shard for move in by_choice}) == len(by_choice)
    leads = [move.shard for move in moves if isinstance(move, LeadMoved)]
    assert len(set(leads)) == len(leads)


@settings(max_examples=examples(25, exploring=60))
@given(st.integers(2, 6), st.integers(1, 40))
def test_equal_shards_on_equal_nodes_end_within_the_tolerance(count: int, shards: int) -> None:
    nodes = [Node(f"n{number}") for number in range(count)]
    after = settled(nodes, [Shard(id, ("n0",), "n0", copies_wanted=1) for id in range(shards)])
    load = Counter(shard.copies[0] for shard in after)
    assert max(load.values()) <= max(-(-shards // count), shards / count * (1 + IMBALANCE_TOLERATED) + 1)
