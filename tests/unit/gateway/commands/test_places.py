"""What is to be done for a plan, by where its queues lie: decided before anything begins."""

from __future__ import annotations

import json
from typing import Any

import pytest

from backend_store.client import plans
from gateway.commands.places import Step, is_at, is_over, lies_in, steps


def move(to: str, state: str = "draining", source: str = "us") -> dict[str, Any]:
    return {"from": source, "to": to, "state": state}


def place(cluster: str, *moves: dict[str, Any]) -> dict[str, Any]:
    """As a server of an earlier version says it, which splits no queue."""
    return {"cluster": cluster, "moves": list(moves)}


def shared(*goal: str, **shares: float) -> dict[str, Any]:
    clusters = [{"cluster": cluster, "share": share} for cluster, share in shares.items()]
    return {"cluster": next(iter(shares)), "moves": [], "clusters": clusters, "goal": list(goal)}


def stepped(places: dict[tuple[str, str], Any], given: dict[str, int] | None = None, **plan: Any) -> list[Step]:
    read = plans.parse(json.dumps({"version": 1, **plan}).encode())
    return steps(read, places, "default", given or {})


def moved(found: Any, **fields: Any) -> Step:
    """What becomes of a move of `orders` from us to eu."""
    entry = {"queue": "orders", "from": "us", "to": "eu", **fields}
    [step] = stepped({("default", "orders"): found}, moves=[entry])
    return step


def resized(found: Any, has: int = 2, /, **fields: Any) -> Step:
    """What becomes of four partitions for `clicks` in us, which has so many."""
    entry = {"queue": "clicks", "partitions": 4, "clusters": ["us"], **fields}
    name = (str(entry.get("tenant", "default")), "clicks")
    [step] = stepped({name: found}, {"clicks": has}, partitions=[entry])
    return step


def test_a_queue_lies_where_its_publishes_arrive() -> None:
    assert lies_in(place("us")) == "us"
    assert lies_in(place("eu", move("eu"))) == "eu"
    for said in ("us", "eu"):
        assert lies_in(place(said, move("eu", "sealing"))) == "us"
    assert is_at(place("asia", move("eu", "remembering"), move("asia", source="eu")), "asia")


def test_a_queue_of_several_clusters_is_where_it_lies_evenly_and_nothing_more_is_to_come() -> None:
    assert lies_in(shared(us=0.5, eu=0.496, asia=0.004)) == "us (50%), eu (50%) and asia (0.4%)"
    assert is_over(shared(us=0.332, eu=0.332, asia=0.336), ["asia", "eu", "us"])
    assert not is_over(shared("us", "eu", "asia", us=0.5, eu=0.5), ["us", "eu"])
    assert not is_over(shared(us=0.75, eu=0.25), ["us", "eu"]), "it was given up half way"
    assert not is_over(shared(us=1.0), ["us", "eu"]) and not is_at(shared(us=0.5, eu=0.5), "us")
    assert is_at(shared(eu=1.0), "eu") and not is_at(shared("us", "eu", eu=1.0), "eu")


def test_a_queue_that_lies_where_the_plan_says_is_moved() -> None:
    assert (moved(place("us")).is_done, moved(place("us")).why_not) == (False, "")


@pytest.mark.parametrize("state", ["draining", "remembering"])
def test_a_move_that_was_done_or_drains_is_passed_over(state: str) -> None:
    assert moved(place("eu")).is_done
    assert moved(place("eu", move("eu", state))).is_done


def test_a_move_that_is_not_there_yet_is_waited_for() -> None:
    step = moved(place("us", move("eu", "sealing")))
    assert (step.is_done, step.why_not) == (False, "")


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (moved(place("us"), partition=3), "moves[0].partition is 3; single partitions cannot move"),
        (moved(None), "moves[0].queue: tenant 'default' has no queue 'orders'"),
        (moved(place("asia")), "moves[0].from is 'us'; queue 'orders' is in 'asia'; make a new plan"),
        (moved(place("us", move("asia", "sealing"))), "is moving to 'asia'"),
        (moved(shared(us=0.5, eu=0.5)), "moves[0].from is 'us'; queue 'orders' is in 'us' and 'eu'"),
        (moved(shared(us=0.5, asia=0.5), merge=True), "moves[0].to is 'eu'; queue 'orders' is in 'us' and 'asia'"),
        (moved(shared(eu=0.5, asia=0.5), merge=True), "moves[0].from is 'us'; queue 'orders' is in 'eu' and 'asia'"),
        (moved(place("us"), merge=True), "moves[0].to is 'eu'; queue 'orders' is in 'us'; make a new plan"),
        (moved(shared("asia", us=0.5, eu=0.5), merge=True), "is moving to 'asia'"),
        (moved(shared("us", "asia", us=1.0)), "is moving to 'us' and 'asia'"),
        (resized(shared(us=0.5, eu=0.5)), "partitions[0].clusters[0] is 'us'; queue 'clicks' is in 'us' and 'eu'"),
        (
            resized(place("asia"), clusters=["us", "eu"]),
            "partitions[0].clusters are 'us' and 'eu'; queue 'clicks' is in",
        ),
        (resized(place("us", move("asia", "sealing")), clusters=["us", "eu"]), "is moving to 'asia'"),
        (resized(shared("us", "asia", us=1.0), clusters=["us", "eu"]), "is moving to 'us' and 'asia'"),
        (resized(place("us"), tenant="acme", clusters=["us", "eu"]), "partitions[0].tenant is 'acme'"),
        (resized(None, clusters=["us", "eu"]), "partitions[0].queue: tenant 'default' has no queue 'clicks'"),
        (resized(place("eu")), "partitions[0].clusters[0] is 'us'; queue 'clicks' is in 'eu'"),
        (resized(None), "partitions[0].queue: tenant 'default' has no queue 'clicks'"),
        (resized(place("us"), tenant="acme"), "partitions[0].tenant is 'acme'; the key belongs to 'default'"),
    ],
)
def test_what_cannot_be_done_is_named_with_its_place(step: Step, said: str) -> None:
    assert said in step.why_not and not step.is_done


def test_a_queue_that_clusters_share_is_merged_into_one_of_them() -> None:
    for found in (shared(us=0.5, eu=0.5), shared(eu=0.34, asia=0.33, us=0.33), shared("eu", us=0.25, eu=0.75)):
        step = moved(found, merge=True)
        assert (step.is_done, step.why_not, step.is_merge) == (False, "", True)
    assert moved(place("eu"), merge=True).is_done and moved(shared(eu=1.0), merge=True).is_done


def test_partitions_that_a_queue_has_are_passed_over() -> None:
    assert (resized(place("us")).is_done, resized(place("us")).why_not) == (False, "")
    assert resized(place("us"), 4).is_done


@pytest.mark.parametrize(
    ("has", "wanted", "gets"), [(2, 4, None), (2, 5, 3), (2, 6, 3), (5, 4, None)], ids=["enough", "up", "more", "fewer"]
)
def test_each_cluster_has_its_part_of_the_partitions(has: int, wanted: int, gets: int | None) -> None:
    step = resized(place("us"), has, partitions=wanted, clusters=["us", "eu"])
    assert (step.partitions, step.is_done, step.why_not) == (gets, False, "")
    there = resized(shared(us=0.5, eu=0.5), has, partitions=wanted, clusters=["us", "eu"])
    assert (there.partitions, there.is_done) == (gets, gets is None)


def test_what_is_on_its_way_there_is_waited_for() -> None:
    step = resized(shared("eu", "us", us=1.0), clusters=["us", "eu"])
    assert (step.is_done, step.why_not) == (False, "")
    merged = moved(shared("eu", us=0.5, eu=0.5))
    assert (merged.is_done, merged.why_not) == (False, "")


def test_what_takes_no_time_comes_first() -> None:
    places = dict.fromkeys([("default", "orders"), ("default", "clicks"), ("default", "views")], place("us"))
    found = stepped(
        places,
        moves=[{"queue": "orders", "from": "us", "to": "eu"}],
        partitions=[
            {"queue": "clicks", "partitions": 4, "clusters": ["us", "eu"]},
            {"queue": "views", "partitions": 4, "clusters": ["us"]},
        ],
    )
    assert [step.at for step in found] == ["partitions[1]", "partitions[0]", "moves[0]"]
