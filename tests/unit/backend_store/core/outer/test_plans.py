"""Plan files: what is written is read again, and what is wrong is named with its place."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_store.core.outer.limits import PLAN_BYTES_MAX, PLAN_ENTRIES_MAX
from backend_store.core.outer.merging import QueueMerged
from backend_store.core.outer.plans import (
    Plan,
    PlannedMove,
    PlannedPartitions,
    check_clusters,
    check_queues,
    parse,
    proposed,
    written,
)
from backend_store.core.outer.relief import QueueMoved, QueueSplit
from backend_store.model import InvalidRequest

MOVE = {"queue": "orders", "from": "eu", "to": "us"}
SPLIT = {"queue": "clicks", "partitions": 4, "clusters": ["eu", "us"]}


def plan_of(**fields: Any) -> bytes:
    return json.dumps({"version": 1, **fields}).encode()


def test_what_the_manager_proposes_is_a_plan_that_can_be_read() -> None:
    plan = proposed([QueueMoved("t", "orders", "eu", "us"), QueueSplit("t", "clicks", "eu", "us", 4)])
    assert parse(written(plan)) == plan
    assert plan.moves == (PlannedMove("orders", "eu", "us", "t"),)
    assert plan.partitions == (PlannedPartitions("clicks", 4, ("eu", "us"), "t"),)


def test_a_merge_is_a_move_that_says_so() -> None:
    plan = proposed([QueueMerged("t", "orders", "eu", "us")])
    assert parse(written(plan)) == plan == Plan(1, (PlannedMove("orders", "eu", "us", "t", is_merge=True),))
    assert b'"merge": true' in written(plan)
    assert b"merge" not in written(proposed([QueueMoved("t", "orders", "eu", "us")]))


def test_a_plan_by_hand_may_leave_out_what_is_usual() -> None:
    plan = parse(plan_of(moves=[MOVE, {**MOVE, "queue": "one", "partition": 3}], partitions=[SPLIT]))
    assert plan.moves[0].tenant == "default" and plan.moves[0].partition is None and plan.moves[1].partition == 3
    assert parse(plan_of()) == Plan(1)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"{", "not valid JSON"),
        (b"{}", "version"),
        (json.dumps({"version": 2}).encode(), "version is 2"),
        (plan_of(movs=[]), "movs"),
        (plan_of(moves=[{"queue": "q", "from": "eu"}]), r"`to`.*moves\[0\]|`to`.*moves"),
        (plan_of(moves=[{**MOVE, "to": "eu"}]), r"moves\[0\]\.to is 'eu'"),
        (plan_of(moves=[{**MOVE, "queue": ""}]), r"moves\[0\]\.queue is empty"),
        (plan_of(moves=[{**MOVE, "partition": -1}]), r"moves\[0\]\.partition must be between 0 and 255, not -1"),
        (plan_of(moves=[{**MOVE, "partition": 1, "merge": True}]), r"moves\[0\] has partition and merge"),
        (plan_of(moves=[MOVE, MOVE]), r"moves\[1\].*moved twice"),
        (plan_of(moves=[{**MOVE, "partition": 1}, MOVE]), r"moves\[1\].*moved twice"),
        (
            plan_of(partitions=[{**SPLIT, "partitions": 0}]),
            r"partitions\[0\]\.partitions must be between 1 and 256, not 0",
        ),
        (plan_of(partitions=[{**SPLIT, "partitions": "many"}]), "partitions"),
        (plan_of(partitions=[{**SPLIT, "clusters": []}]), r"clusters is empty"),
        (plan_of(partitions=[{**SPLIT, "clusters": ["eu", "eu"]}]), r"lists a cluster twice"),
        (plan_of(partitions=[{**SPLIT, "partitions": 1}]), "partitions; list fewer"),
        (plan_of(partitions=[SPLIT, SPLIT]), r"partitions\[1\].*listed twice"),
        (plan_of(moves=[{**MOVE, "queue": "clicks"}], partitions=[SPLIT]), "also moved"),
        (b" " * (PLAN_BYTES_MAX + 1), "bytes"),
        (plan_of(moves=[{**MOVE, "queue": f"q{n}"} for n in range(PLAN_ENTRIES_MAX + 1)]), "split it"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(text: bytes, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        parse(text)


def test_a_cluster_that_there_is_not_is_named() -> None:
    plan = parse(plan_of(moves=[MOVE], partitions=[SPLIT]))
    check_clusters(plan, {"eu", "us"})
    with pytest.raises(InvalidRequest, match=r"moves\[0\]\.to: unknown cluster 'us'; the clusters are eu"):
        check_clusters(plan, {"eu"})


def test_what_the_queues_cannot_do_is_named_and_other_tenants_are_left_alone() -> None:
    moved = parse(plan_of(moves=[{**MOVE, "partition": 3}, {**MOVE, "tenant": "acme", "queue": "theirs"}]))
    check_queues(moved, "default", {"orders": 4})
    with pytest.raises(InvalidRequest, match=r"moves\[0\]\.partition is 3; queue 'orders' has partitions 0 to 2"):
        check_queues(moved, "default", {"orders": 3})
    with pytest.raises(InvalidRequest, match=r"moves\[1\]\.queue: there is no queue 'theirs'"):
        check_queues(moved, "acme", {})
    wider = parse(plan_of(partitions=[{**SPLIT, "clusters": ["eu"]}]))
    check_queues(wider, "default", {"clicks": 4})
    with pytest.raises(InvalidRequest, match=r"partitions\[0\]\.partitions is 4; queue 'clicks' already has 5"):
        check_queues(wider, "default", {"clicks": 5})
    check_queues(parse(plan_of(partitions=[SPLIT])), "default", {"clicks": 5})


@given(st.binary(max_size=60) | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(
    lambda value: json.dumps({"version": 1, "moves": value}).encode()
))  # fmt: skip
def test_no_file_makes_anything_but_a_plan_or_a_refusal(text: bytes) -> None:
    with suppress(InvalidRequest):
        assert parse(text).version == 1
