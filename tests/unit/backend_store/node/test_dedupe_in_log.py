"""Deduplication as the log does it: a repeat is answered with its original, in any commit, after any crash."""

from __future__ import annotations

import pytest

from backend_store.core.log.block import punch
from backend_store.core.log.chunk import blocks_of
from backend_store.model import Original, Published, QueueFull, Stamp
from tests.support.queues import counts, crashed, draft, drained, publish, queue
from tests.support.world import World

WINDOW_MS = 1000


def deduping(**settings: object) -> World:
    return queue(dedupe="id", dedupe_window_ms=WINDOW_MS, **settings)


def test_a_repeat_is_not_stored_and_names_the_first() -> None:
    world = deduping()
    assert publish(world, draft("a", id="x"), draft("b", id="y")) == [0, 1]
    assert publish(world, draft("again", id="y")) == [Original(1)]
    assert drained(world) == ["a", "b"]


def test_a_repeat_is_known_by_the_receipt_of_nobody_for_the_first_may_be_gone() -> None:
    world = deduping()
    publish(world, draft("a", id="x"))
    drained(world)
    assert publish(world, draft("again", id="x")) == [Original(0)]
    world.purge()
    world.settle_down()
    assert publish(world, draft("again", id="x")) == [Original(0)] and counts(world) == (0, 0, 0)


def test_repeats_within_a_call_name_the_first_of_it() -> None:
    world = deduping()
    assert publish(world, *[draft(body, id="x") for body in "abc"]) == [0, Original(0), Original(0)]
    assert drained(world) == ["a"]


def test_repeats_among_calls_of_one_commit_name_the_first() -> None:
    world = deduping()
    answers = [world.publish_drafts([draft(body, id="x"), draft(body)]) for body in "ab"]
    world.commit()
    first, second = answers[0][0], answers[1][0]
    assert isinstance(first, Published) and isinstance(second, Published)
    assert second.others == {0: Original(first.base)}
    assert drained(world) == ["a", "a", "b"]


def test_a_call_of_repeats_only_is_answered_as_a_success() -> None:
    world = deduping()
    publish(world, draft("a", id="x"))
    answers = world.publish_drafts([draft("again", id="x")])
    world.commit()
    (answer,) = answers
    assert isinstance(answer, Published) and answer.count == 1 and answer.others == {0: Original(0)}


def test_an_id_is_known_for_the_window_and_not_longer() -> None:
    world = deduping()
    publish(world, draft("a", id="x"))
    world.pass_time(WINDOW_MS - 1)
    assert publish(world, draft("again", id="x")) == [Original(0)]
    world.pass_time(1)
    assert publish(world, draft("new", id="x")) != [Original(0)]
    assert drained(world) == ["a", "new"]


def test_a_repeat_does_not_make_the_window_longer() -> None:
    world = deduping()
    publish(world, draft("a", id="x"))
    for _ in range(3):
        world.pass_time(WINDOW_MS // 3)
        publish(world, draft("again", id="x"))
    world.pass_time(2)
    assert isinstance(publish(world, draft("new", id="x"))[0], int)


@pytest.mark.parametrize("landed", [False, True])
def test_after_a_crash_an_id_is_known_exactly_if_its_message_is_there(landed: bool) -> None:
    world = deduping()
    world.publish_drafts([draft("a", id="x")])
    world.committer.prepare()
    crashed(world, landed=landed)
    assert publish(world, draft("again", id="x")) == ([Original(0)] if landed else [0])
    assert drained(world) == (["a"] if landed else ["again"])


def test_a_message_that_was_refused_may_come_again_under_its_id() -> None:
    world = deduping(max_messages=1)
    publish(world, draft("a", id="x"))
    assert isinstance(publish(world, draft("b", id="y"))[0], QueueFull)
    drained(world)
    assert isinstance(publish(world, draft("b", id="y"))[0], int) and drained(world) == ["b"]


def test_the_repeat_of_a_message_that_is_refused_is_refused_with_it() -> None:
    world = deduping(max_messages=1)
    publish(world, draft("a"))
    answers = publish(world, draft("b", id="y"), draft("again", id="y"))
    assert [type(one) for one in answers] == [QueueFull, QueueFull]


def test_messages_without_an_id_are_never_repeats() -> None:
    world = deduping()
    assert publish(world, draft("a"), draft("a")) == [0, 1]
    assert drained(world) == ["a", "a"]


def test_a_queue_that_deduplicates_nothing_takes_ids_as_they_come() -> None:
    world = queue()
    assert publish(world, draft("a", id="x"), draft("b", id="x")) == [0, 1]


def test_what_another_queue_sends_is_deduplicated_all_the_same() -> None:
    world, answers = queue(), list[object]()
    for _ in range(2):
        world.partition.publish(blocks_of([draft("a", id="x")]).blocks, answers.append, dedupes=True)
        world.commit()
    assert drained(world) == ["a"]


def test_one_id_for_two_numbers_of_a_producer_is_answered_as_the_repeat_it_is() -> None:
    world = deduping(sequencing="producer")
    publish(world, draft("1", stamp=Stamp(0, "p", 1)))
    both = draft("1", id="x", stamp=Stamp(0, "p", 1)), draft("1", id="x")
    assert publish(world, *both) == [Original(0), Original(0)]
    assert drained(world) == ["1"]


def test_a_repeat_is_not_told_what_another_call_was_refused() -> None:
    """Two calls of one commit have an id: the first finds no room for it, in the other it repeats what is stored."""
    world = deduping(sequencing="producer", max_messages=2)
    again = Stamp(0, "p", 1)
    publish(world, draft("1", stamp=again))
    world.publish_drafts([draft("1", stamp=again), draft("2", id="x")])
    assert publish(world, draft("1", id="x", stamp=again), draft("1", id="x")) == [Original(0), Original(0)]
    assert drained(world) == ["1"]


def test_holes_are_no_messages_and_counted_nowhere() -> None:
    world = queue()
    (block,) = blocks_of([draft("a"), draft("b"), draft("c")]).blocks
    world.partition.publish([punch(block, 0b010)], lambda _: None)
    world.commit()
    assert counts(world) == (2, 0, 0) and drained(world) == ["a", "c"]
