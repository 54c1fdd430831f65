"""Consume, transform, produce in one step: all of it happens with one commit, or nothing."""

from __future__ import annotations

from typing import Any

import pytest

from backend_store.core.chunk import Draft, blocks_of
from backend_store.core.receipts import by_token
from backend_store.model import Offset, Published, PushqError, QueueFull, QueueNotFound, StorageFull
from backend_store.node.joint import Joint, JointResult
from tests.support.queues import counts, crashed, draft, drained, publish, queue, receipts, settle, took
from tests.support.world import World, partitions_of


def begun(**settings: object) -> tuple[World, list[str]]:
    """A queue whose message `in` somebody holds, and the receipt."""
    world = queue(**settings)
    publish(world, draft("in"))
    lease = took(world)
    world.settle_down()
    return world, receipts(lease)


def ask(world: World, given: list[str], *drafts: Draft) -> list[JointResult | PushqError]:
    answers: list[JointResult | PushqError] = []
    publishes = [(partitions_of(world), blocks_of(drafts).blocks)] if drafts else []
    world.partition.settle_and_publish(Joint([(world.main, by_token(given))], publishes, answers.append))
    return answers


def result(answers: list[Any]) -> JointResult:
    (answer,) = answers
    assert isinstance(answer, JointResult), answer
    return answer


def test_what_was_taken_goes_and_what_was_made_of_it_comes() -> None:
    world, given = begun()
    answers = ask(world, given, draft("out"), draft("out too"))
    assert answers == []
    world.commit()
    made = result(answers)
    assert sum(bits.bit_count() for bits in made.settled.values()) == 1
    assert made.places == [Published(0, Offset(1), 2)]
    assert drained(world) == ["out", "out too"] and world.partition.state.acked_total == 3


@pytest.mark.parametrize("landed", [False, True])
def test_a_crash_leaves_the_one_or_the_other(landed: bool) -> None:
    world, given = begun()
    ask(world, given, draft("out"))
    world.committer.prepare()
    crashed(world, landed=landed)
    assert drained(world) == (["out"] if landed else ["in"])


def test_a_lost_lease_publishes_nothing() -> None:
    world, given = begun()
    world.pass_time(30_000)
    answers = ask(world, given, draft("out"))
    world.settle_down()
    assert result(answers) == JointResult({}) and drained(world) == ["in"]


def test_one_stale_receipt_among_good_ones_stops_the_whole_step() -> None:
    world = queue()
    publish(world, draft("a"), draft("b"))
    first, second = receipts(took(world))
    settle(world, [first])
    answers = ask(world, [first, second], draft("out"))
    world.settle_down()
    assert result(answers) == JointResult({}) and counts(world) == (0, 1, 0)
    assert settle(world, [second]) == [True]


def test_the_same_step_again_is_answered_as_done_and_not_done_twice() -> None:
    world, given = begun()
    ask(world, given, draft("out"))
    world.commit()
    again = ask(world, given, draft("out"))
    world.settle_down()
    assert sum(result(again).settled.values()) == 1 and result(again).places == []
    assert drained(world) == ["out"]


def test_two_steps_with_one_receipt_in_one_commit_publish_once() -> None:
    world, given = begun()
    answers = [ask(world, given, draft("out")) for _ in range(2)]
    world.settle_down()
    assert drained(world) == ["out"]
    assert sorted(len(result(one).places) for one in answers) == [0, 1]


def test_nobody_is_told_that_a_step_is_done_before_it_is_durable() -> None:
    world, given = begun()
    both = [ask(world, given, draft("out")) for _ in range(2)]
    world.committer.prepare()
    assert both == [[], []]
    crashed(world)
    assert drained(world) == ["in"]


def test_an_ack_and_a_step_in_one_commit_do_not_both_happen() -> None:
    world, given = begun()
    acked: list[object] = []
    world.main.settle(by_token(given), acked.append)
    answers = ask(world, given, draft("out"))
    world.settle_down()
    assert result(answers).places == [] and drained(world) == [] and len(acked) == 1


def test_an_ack_that_came_first_leaves_nothing_to_the_step() -> None:
    world, given = begun()
    settle(world, given)
    answers = ask(world, given, draft("out"))
    world.settle_down()
    assert result(answers).places == [] and drained(world) == []


def test_without_room_for_what_was_made_nothing_is_settled() -> None:
    world, given = begun(max_messages=2)
    answers = ask(world, given, draft("out"), draft("out too"))
    world.commit()
    assert isinstance(answers[0], QueueFull)
    assert counts(world) == (0, 1, 0) and settle(world, given) == [True]


def test_a_full_disk_refuses_the_step_and_keeps_the_lease() -> None:
    world, given = begun()
    world.allowed = False
    answers = ask(world, given, draft("out"))
    world.commit()
    assert isinstance(answers[0], StorageFull) and settle(world, given) == [True]


def test_a_step_without_anything_to_publish_is_an_ack() -> None:
    world, given = begun()
    answers = ask(world, given)
    world.commit()
    assert sum(result(answers).settled.values()) == 1 and counts(world) == (0, 0, 0)


def test_steps_that_wait_when_the_queue_is_deleted_are_told() -> None:
    world, given = begun()
    answers = ask(world, given, draft("out"))
    world.partition.close()
    assert [type(one) for one in answers + ask(world, given)] == [QueueNotFound, QueueNotFound]
