"""The plan that `capacity_plan` writes is one that the manager of clusters reads."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_store.core.outer import limits, plans
from backend_store.core.outer.plans import Plan, PlannedMove, PlannedPartitions
from spark.jobs import plan_file
from spark.jobs.plan_file import Placed, placements, proposed, written


def queue(uid: int, wanted: int = 1, name: str = "") -> dict[str, Any]:
    return {"tenant": "a", "queue": name or f"q{uid}", "queue_uid": uid, "partitions_wanted": wanted}


def read(*given: Any) -> Plan:
    return plans.parse(written(proposed(*given)).encode())


def test_a_plan_is_read_as_it_was_meant() -> None:
    placed = [Placed(1, 0, "us"), *(Placed(2, n, "eu") for n in range(4))]
    plan = read([queue(1, 5)], [queue(1), queue(2)], placed)
    assert plan.partitions == (PlannedPartitions("q1", 5, ("us", "eu"), "a"),)
    assert plan.moves == (PlannedMove("q2", "eu", "us", "a", 1), PlannedMove("q2", "eu", "us", "a", 2))
    plans.check_clusters(plan, {"eu", "us"})


def test_both_sides_have_the_same_bounds() -> None:
    assert (plan_file.PLAN_VERSION, plan_file.PARTITIONS_MAX) == (plans.PLAN_VERSION, limits.PARTITIONS_MAX)
    assert plan_file.PROPOSALS_MAX <= limits.PLAN_ENTRIES_MAX


def test_a_new_cluster_gets_partitions_and_none_are_proposed_where_no_cluster_is_known() -> None:
    assert read([queue(1, 900)], [], [], ["new"]).partitions == (PlannedPartitions("q1", 256, ("new",), "a"),)
    assert [move.to for move in read([], [queue(1)], [Placed(1, 0, "eu"), Placed(1, 1, "eu")], ["new"]).moves] == [
        "new"
    ]
    assert read([queue(1, 900)], [queue(1)], []) == Plan(1)


def test_a_queue_that_was_made_anew_under_its_name_is_planned_as_it_is_now() -> None:
    before, now = queue(1, 9, "q"), queue(2, 3, "q")
    assert [one.partitions for one in read([before, now], [before, now], [Placed(2, 0, "eu")]).partitions] == [3]


ROWS = st.lists(
    st.builds(queue, st.integers(1, 6), st.integers(1, 400), st.sampled_from(["", "same"])),
    max_size=8,
    unique_by=lambda row: row["queue_uid"],
)
PLACED = st.lists(
    st.builds(Placed, st.integers(1, 6), st.integers(0, 5), st.sampled_from(["eu", "us", "asia"])),
    max_size=20,
    unique_by=lambda one: (one.uid, one.partition),
)


@given(ROWS, ROWS, PLACED, st.lists(st.sampled_from(["eu", "new"])))
def test_every_plan_is_one_that_can_be_read(
    wider: list[dict[str, Any]], hot: list[dict[str, Any]], placed: list[Placed], clusters: list[str]
) -> None:
    plan = read(wider, hot, placed, clusters)
    plans.check_clusters(plan, {*clusters, *(one.cluster for one in placed)})
    there = {(row["queue"], one.partition, one.cluster) for row in hot for one in placed if one.uid == row["queue_uid"]}
    assert {(move.queue, move.partition, move.source) for move in plan.moves} <= there


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "not a list"),
        ([{"uid": 1, "partition": 0}], r"\[0\] needs uid, partition and cluster"),
        ([3], r"\[0\] needs"),
        ([{"uid": 1, "partition": -1, "cluster": "eu"}], "from 0 to 255"),
        ([{"uid": "x", "partition": 1, "cluster": "eu"}], "uid must be a number"),
        ([{"uid": 1, "partition": 1, "cluster": ""}], r"\[0\].cluster must be the name"),
        ([{"uid": 1, "partition": 1, "cluster": "eu"}] * 2, r"\[1\]: partition 1 of queue 1 is listed twice"),
    ],
)
def test_a_wrong_placement_is_named(given: object, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        placements(given)
