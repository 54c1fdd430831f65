"""What is to be done for a plan, by where its queues lie: decided before anything begins."""

from __future__ import annotations

import json
from typing import Any

import pytest

from backend_store.client import plans
from gateway.commands.places import Step, is_at, lies_in, steps


def move(to: str, state: str = "draining", source: str = "us") -> dict[str, Any]:
    return {"from": source, "to": to, "state": state}


def place(cluster: str, *moves: dict[str, Any]) -> dict[str, Any]:
    return {"cluster": cluster, "moves": list(moves)}


def stepped(places: dict[tuple[str, str], Any], given: dict[str, int] | None = None, **plan: Any) -> list[Step]:
    read = plans.parse(json.dumps({"version": 1, **plan}).encode())
    return steps(read, places, "default", given or {})


def moved(found: Any, **fields: Any) -> Step:
    """What becomes of a move of `orders` from us to eu."""
    entry = {"queue": "orders", "from": "us", "to": "eu", **fields}
    [step] = stepped({("default", "orders"): found}, moves=[entry])
    return step


def resized(found: Any, partitions: int = 2, **fields: Any) -> Step:
    """What becomes of four partitions for `clicks` in us."""
    entry = {"queue": "clicks", "partitions": 4, "clusters": ["us"], **fields}
    name = (str(entry.get("tenant", "default")), "clicks")
    [step] = stepped({name: found}, {"clicks": partitions}, partitions=[entry])
    return step


def test_a_queue_lies_where_its_publishes_arrive() -> None:
    assert lies_in(place("us")) == "us"
    assert lies_in(place("eu", move("eu"))) == "eu"
    for said in ("us", "eu"):
        assert lies_in(place(said, move("eu", "sealing"))) == "us"
    assert is_at(place("asia", move("eu", "remembering"), move("asia", source="eu")), "asia")


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
        (moved(place("us"), partition=3), "moves[0].partition is 3; one partition does not move alone"),
        (moved(None), "moves[0].queue: tenant 'default' has no queue 'orders'"),
        (moved(place("asia")), "moves[0].from is 'us'; queue 'orders' lies in 'asia'; make the plan anew"),
        (moved(place("us", move("asia", "sealing"))), "is on its way to 'asia'"),
        (resized(place("us"), clusters=["us", "eu"]), "partitions[0].clusters names 2; a queue lies in one cluster"),
        (resized(place("eu")), "partitions[0].clusters[0] is 'us'; queue 'clicks' lies in 'eu'"),
        (resized(None), "partitions[0].queue: tenant 'default' has no queue 'clicks'"),
        (resized(place("us"), tenant="acme"), "partitions[0].tenant is 'acme'; the key is of 'default'"),
    ],
)
def test_what_cannot_be_done_is_named_with_its_place(step: Step, said: str) -> None:
    assert said in step.why_not and not step.is_done


def test_partitions_that_a_queue_has_are_passed_over() -> None:
    assert (resized(place("us")).is_done, resized(place("us")).why_not) == (False, "")
    assert resized(place("us"), partitions=4).is_done


def test_numbers_of_partitions_come_before_moves() -> None:
    places = {("default", "orders"): place("us"), ("default", "clicks"): place("us")}
    found = stepped(
        places,
        moves=[{"queue": "orders", "from": "us", "to": "eu"}],
        partitions=[{"queue": "clicks", "partitions": 4, "clusters": ["us"]}],
    )
    assert [step.at for step in found] == ["partitions[0]", "moves[0]"]
