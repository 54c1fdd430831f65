"""Dead letters: which messages become some, what they say of their end, and that they are nowhere twice."""

from __future__ import annotations

import pytest

from backend_store.core.leases.receipts import by_token
from backend_store.core.log.chunk import KIND_JSON, Draft
from backend_store.model import QueueConfig
from backend_store.storage.engine import Table
from tests.support.queues import (
    DEAD,
    column,
    counts,
    crashed,
    draft,
    drained,
    nack,
    publish,
    queue,
    receipts,
    rows,
    settle,
    texts,
    took,
)
from tests.support.world import World


def worn_out(world: World, body: str = "a") -> None:
    """A message that nobody could deal with, after its last attempt."""
    publish(world, draft(body))
    for _ in range(world.config.max_attempts):
        nack(world, took(world), reason="cannot")


def test_a_message_goes_to_the_companion_after_its_last_attempt() -> None:
    world = queue(max_attempts=2)
    publish(world, draft("a"))
    nack(world, took(world))
    assert counts(world) == (1, 0, 0)
    nack(world, took(world))
    assert (counts(world), counts(world, DEAD)) == ((0, 0, 0), (1, 0, 0))
    assert drained(world) == [] and drained(world, view=DEAD) == ["a"]


def test_without_an_attempt_left_it_is_dead_at_once_though_others_of_its_chunk_are_handed_out() -> None:
    """A crash took the lease: that it had no attempt left is seen when it would be handed out again."""
    world = queue(max_attempts=1)
    publish(world, draft("a"), draft("b"))
    took(world, 1)
    publish(world, draft("c"))  # with its commit the attempt is counted
    crashed(world)
    assert texts(took(world)) == ["b"] and world.committer.is_asked
    world.settle_down()
    assert drained(world, view=DEAD) == ["a"]


def test_a_dead_letter_says_why_when_and_what_happened_to_it() -> None:
    world = queue(max_attempts=2, priorities=3)
    publish(world, draft("a", priority=2, id="x"))
    nack(world, took(world), reason="no such customer")
    begun_ms = world.now_ms
    took(world, visibility_ms=100)
    world.pass_time(100)
    world.settle_down()
    letter = took(world, view=DEAD)
    assert column(letter, "id") == ["x"] and column(letter, "at") == [begun_ms]
    assert column(letter, "dead") == [
        {
            "from": "q",
            "reason": "max_attempts",
            "at": begun_ms + 100,
            "attempts": 2,
            "history": [[1, begun_ms, "nacked", "no such customer"], [2, begun_ms + 100, "timed_out", None]],
            "priority": 2,
        }
    ]


def test_a_letter_that_dies_again_has_the_priority_that_it_was_published_with() -> None:
    """It came from another queue, which had more of them."""
    world = queue(max_attempts=1)
    end = {"from": "other", "reason": "max_attempts", "at": world.now_ms, "attempts": 1, "history": [], "priority": 4}
    publish(world, Draft(KIND_JSON, b"a", {"dead": end}), draft("b"))
    nack(world, took(world))
    told = column(took(world, view=DEAD), "dead")
    assert [(one["from"], one["priority"]) for one in told] == [("q", 4), ("q", 0)]


def test_a_letter_without_an_id_keeps_the_one_that_its_place_gave_it() -> None:
    world = queue(max_attempts=1)
    world.stored(b"first")
    drained(world)
    worn_out(world)
    assert column(took(world, view=DEAD), "id") == ["0-000000000002"]


def test_the_reason_is_counted() -> None:
    world = queue(max_attempts=1)
    worn_out(world)
    assert world.partition.state.ended == {"max_attempts": 1}
    assert world.partition.state.acked_total == 0


@pytest.mark.parametrize("landed", [False, True])
def test_a_crash_finds_a_dying_message_in_one_of_its_two_places(landed: bool) -> None:
    world = queue(max_attempts=1)
    publish(world, draft("a"))
    lease = took(world)
    world.commit()
    assert lease is not None
    world.main.give_back_lease(lease)
    world.committer.prepare()
    crashed(world, landed=landed)
    assert (counts(world), counts(world, DEAD)) == (((0, 0, 0), (1, 0, 0)) if landed else ((1, 0, 0), (0, 0, 0)))


def test_attempts_that_a_crash_cut_off_count() -> None:
    world = queue(max_attempts=2)
    publish(world, draft("a"))
    for _ in range(2):
        assert texts(took(world)) == ["a"]
        world.settle_down()
        crashed(world)
    assert took(world) is None, "it has had its two attempts"
    world.settle_down()
    assert drained(world, view=DEAD) == ["a"]


def test_without_a_dead_letter_queue_attempts_have_no_limit() -> None:
    world = queue(dead_letter_queue=None)
    publish(world, draft("a"))
    for attempt in range(1, 30):
        lease = took(world)
        assert lease is not None and lease.attempt_of(0) == attempt
        nack(world, lease)
    assert counts(world) == (1, 0, 0)


def lowered(world: World, max_attempts: int) -> None:
    world.config = QueueConfig(max_attempts=max_attempts)
    world.partition.configure(world.config)
    world.settle_down()


@pytest.mark.parametrize("tries", [1, 2, 4])
@pytest.mark.parametrize("crashes", [False, True])
def test_a_lower_limit_buries_nothing_before_one_more_attempt(tries: int, crashes: bool) -> None:
    world = queue(max_attempts=5)
    publish(world, draft("a"))
    for _ in range(tries):
        nack(world, took(world))
    lowered(world, 1)
    if crashes:
        crashed(world)
    assert (counts(world), counts(world, DEAD)) == ((1, 0, 0), (0, 0, 0))
    lease = took(world)
    assert lease is not None and lease.attempt_of(0) == tries + 1
    nack(world, lease)
    assert (counts(world), counts(world, DEAD)) == ((0, 0, 0), (1, 0, 0))


def test_a_message_that_had_many_attempts_may_be_acked_in_the_one_that_a_lower_limit_leaves_it() -> None:
    world = queue(max_attempts=5)
    publish(world, draft("a"))
    for _ in range(3):
        nack(world, took(world))
    lowered(world, 2)
    assert settle(world, receipts(took(world))) == [True]
    assert (counts(world), counts(world, DEAD)) == ((0, 0, 0), (0, 0, 0))


def test_what_waits_for_its_back_off_waits_on_under_a_lower_limit_and_comes_once_more() -> None:
    world = queue(max_attempts=5, retry_backoff_ms=100)
    publish(world, draft("a"))
    nack(world, took(world))
    lowered(world, 1)
    assert counts(world) == (0, 0, 1)
    world.pass_time(100)
    nack(world, took(world))
    assert (counts(world), counts(world, DEAD)) == ((0, 0, 0), (1, 0, 0))


def test_an_attempt_that_nobody_began_with_under_a_lower_limit_is_not_the_one_more() -> None:
    world = queue(max_attempts=5)
    publish(world, draft("a"))
    for _ in range(2):
        nack(world, took(world))
    lowered(world, 3)
    answers: list[object] = []
    world.main.give_back(by_token(receipts(took(world))), None, None, answers.append, tried=False)
    world.settle_down()
    lowered(world, 1)
    lease = took(world)
    assert answers and lease is not None and lease.attempt_of(0) == 3


def test_who_holds_a_message_while_the_limit_is_lowered_has_its_last_attempt() -> None:
    world = queue(max_attempts=5)
    publish(world, draft("a"), draft("b"))
    lease = took(world)
    lowered(world, 1)
    assert counts(world) == (0, 2, 0)
    acked, failed = receipts(lease)
    assert settle(world, [acked]) == [True]
    world.main.give_back(by_token([failed]), None, None, lambda done: None)
    world.settle_down()
    assert drained(world, view=DEAD) == ["b"]


def test_a_limit_that_comes_with_a_dead_letter_queue_leaves_one_more_attempt() -> None:
    world = queue(dead_letter_queue=None)
    publish(world, draft("a"))
    for _ in range(4):
        nack(world, took(world))
    lowered(world, 2)
    lease = took(world)
    assert lease is not None and lease.attempt_of(0) == 5
    nack(world, lease)
    assert counts(world, DEAD) == (1, 0, 0)


def test_a_dead_letter_has_attempts_without_limit() -> None:
    world = queue(max_attempts=1)
    worn_out(world)
    for attempt in (1, 2, 3):
        lease = took(world, view=DEAD, visibility_ms=100)
        assert lease is not None and lease.attempt_of(0) == attempt
        world.pass_time(100)
        world.settle_down()
    assert counts(world, DEAD) == (1, 0, 0)


def test_a_receipt_of_the_queue_means_nothing_to_its_companion() -> None:
    world = queue(max_attempts=1)
    publish(world, draft("a"))
    lease = took(world)
    given = receipts(lease)
    nack(world, lease)
    assert settle(world, given, view=DEAD) == settle(world, given) == [False]
    letter = receipts(took(world, view=DEAD))
    assert settle(world, letter) == [False] and settle(world, letter, view=DEAD) == [True]


def test_an_undeliverable_message_is_a_dead_letter_without_a_further_attempt() -> None:
    world = queue()
    publish(world, draft("a"))
    lease = took(world)
    assert lease is not None
    world.main.undeliverable(lease)
    world.settle_down()
    assert column(took(world, view=DEAD), "dead")[0]["reason"] == "undeliverable"


def test_nothing_is_left_when_the_letters_are_acked() -> None:
    world = queue(max_attempts=1)
    for body in ("a", "b"):
        worn_out(world, body)
    assert drained(world, view=DEAD) == ["a", "b"]
    assert rows(world, Table.LOG, Table.LANES, Table.MARKS, Table.RETRY) == 0


def test_a_dead_letter_that_comes_with_the_commit_of_a_purge_is_gone_though_it_is_the_first() -> None:
    world = queue(max_messages=1, overflow="dead_letter_newest")
    assert took(world, view=DEAD) is None  # its view knows that nothing is on the disk
    answers: list[object] = []
    world.partition.purge(answers.append, DEAD)
    publish(world, draft("a"), draft("b"))
    assert answers == [1]
    assert drained(world, view=DEAD) == [] and drained(world) == ["a"]


def test_purging_the_companion_leaves_the_queue_alone() -> None:
    world = queue(max_attempts=1)
    worn_out(world)
    publish(world, draft("b"))
    answers: list[object] = []
    world.partition.purge(answers.append, DEAD)
    world.settle_down()
    assert answers == [1]
    assert (counts(world), counts(world, DEAD)) == ((1, 0, 0), (0, 0, 0))
    assert settle(world, ["nonsense"]) == [False]
