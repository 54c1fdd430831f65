"""A queue that makes room ends as many messages as the new ones need: no more, and no fewer."""

from __future__ import annotations

from typing import Any

import pytest

from backend_store.core.leases import leasing
from backend_store.core.leases.leases import Lease
from backend_store.core.log.chunk import Chunk
from backend_store.model import Published, QueueFull
from backend_store.node.publishing import eviction, queue_limits
from backend_store.storage.engine import Table
from tests.support.queues import (
    DEAD,
    ack,
    by_token,
    counts,
    crashed,
    draft,
    drained,
    nack,
    publish,
    queue,
    receipts,
    rows,
    texts,
    took,
)
from tests.support.world import World, verdicts

LIMIT = 20_000


def text(name: str, size: int) -> str:
    return name.ljust(size, ".")


def by_bytes(overflow: str = "drop_oldest", limit: int = LIMIT, **settings: object) -> World:
    return queue(max_bytes=limit, max_message_bytes=limit, overflow=overflow, **settings)


def names(bodies: list[str]) -> list[str]:
    return [body.rstrip(".") for body in bodies]


def holds(world: World) -> int:
    return world.main.bytes


@pytest.mark.parametrize("overflow", ["drop_oldest", "dead_letter_oldest"])
def test_one_message_of_a_call_goes_where_one_is_enough(overflow: str) -> None:
    world = by_bytes(overflow)
    publish(world, *[draft(text(f"old {n}", 1_900)) for n in range(10)])
    assert isinstance(publish(world, draft(text("new", 1_900)))[0], int)
    assert world.partition.state.ended == {"overflow": 1} and holds(world) <= LIMIT
    assert names(drained(world)) == [*(f"old {n}" for n in range(1, 10)), "new"]


def test_many_small_ones_go_for_a_large_one() -> None:
    world = by_bytes()
    for n in range(100):
        publish(world, draft(text(str(n), 100)))
    publish(world, draft(text("large", 15_000)))
    left = names(drained(world))
    assert left == [*map(str, range(100 - len(left) + 1, 100)), "large"] and 20 <= len(left) <= 50


@pytest.mark.parametrize("overflow", ["drop_oldest", "dead_letter_oldest"])
@pytest.mark.parametrize("together", [1, 5])
def test_the_limit_holds_with_each_commit_whatever_the_sizes_are(overflow: str, together: int) -> None:
    world, accepted = by_bytes(overflow), 0
    for n in range(200):
        sizes = [20 + (n * 7919 + 500 * m) % 6_000 for m in range(together)]
        answers = [world.publish_drafts([draft(text(str(n), size))]) for size in sizes]
        while not all(answers):
            assert world.commit()
            assert holds(world) <= LIMIT
        assert all(isinstance(one[0], Published) for one in answers)
        accepted += together
        if n % 3 == 0 and (lease := took(world, 1)) is not None:
            (ack if n % 2 else nack)(world, lease)
    left = world.partition.state.live
    assert left > 1 and holds(world) > LIMIT - 3 * 6_600, "it is about as full as it may be"
    done = world.partition.state.acked_total + world.partition.state.ended["overflow"]
    assert accepted == left + done
    drained(world)
    drained(world, view=DEAD)
    assert holds(world) == world.main.core.ended_bytes == world.partition.state.live_bytes == 0
    assert rows(world, Table.LOG, Table.LANES, Table.MARKS) == 0


def test_calls_of_one_commit_are_all_taken_and_the_newest_stay() -> None:
    world = queue(max_messages=3, overflow="drop_oldest")
    answers = [world.publish_drafts([draft(f"{call}{n}") for n in range(2)]) for call in "abcd"]
    while not all(answers):
        assert world.commit()
        assert world.partition.state.live <= 3
    assert all(isinstance(one[0], Published) and one[0].others is None for one in answers)
    assert drained(world) == ["c1", "d0", "d1"]


@pytest.mark.parametrize("limits", [{"max_messages": 3}, {"max_bytes": 400, "max_message_bytes": 400}])
def test_a_call_that_cannot_fit_is_refused_whole_and_nothing_is_ended_for_it(limits: dict[str, int]) -> None:
    world = queue(overflow="drop_oldest", **limits)
    publish(world, *map(draft, "abc"))
    answers = publish(world, *[draft(text(str(n), 90)) for n in range(4)])
    assert all(isinstance(one, QueueFull) for one in answers) and "4 messages of" in answers[0].detail
    assert drained(world) == ["a", "b", "c"] and world.partition.state.ended == {}


def test_a_call_that_does_not_fit_beside_what_consumers_hold_is_refused_and_nothing_is_ended_for_it() -> None:
    world = by_bytes()
    publish(world, *[draft(text(f"old {n}", 1_900)) for n in range(10)])
    held = took(world, 5)
    large = draft(text("large", 12_000))
    (refused,) = publish(world, large)
    assert isinstance(refused, QueueFull) and "next to the 5" in refused.detail
    assert counts(world) == (5, 5, 0) and world.partition.state.ended == {}
    ack(world, held)
    assert isinstance(publish(world, large)[0], int) and holds(world) <= LIMIT


def test_what_is_acked_in_the_same_commit_makes_room_before_anything_is_ended() -> None:
    world = queue(max_messages=3, overflow="drop_oldest")
    publish(world, *map(draft, "abc"))
    lease = took(world, 1)
    answers = world.publish_drafts([draft("d")])
    ack(world, lease)
    assert isinstance(answers[0], Published) and world.partition.state.ended == {}
    assert drained(world) == ["b", "c", "d"]


def test_what_was_given_back_and_acked_all_the_same_is_in_nobodys_hands() -> None:
    world = queue(max_messages=3, overflow="drop_oldest")
    publish(world, *map(draft, "abc"))
    gone, held, said = took(world, 1), took(world, 1), list[Any]()
    assert gone is not None and texts(held) == ["b"]
    given = receipts(gone)
    world.main.give_back_lease(gone)  # of a consumer that went away while its ack was on its way
    world.main.settle(by_token(given), said.append)
    answers = world.publish_drafts([draft("d"), draft("e")])
    while not answers:
        assert world.commit()
    assert verdicts(given, said[0]) == [True] and isinstance(answers[0], Published)
    assert ack(world, held) == [True] and drained(world) == ["d", "e"]


def test_what_came_back_from_a_consumer_is_the_oldest_again() -> None:
    world = queue(max_messages=3, overflow="drop_oldest")
    publish(world, *map(draft, "abc"))
    lease = took(world, 1)
    publish(world, draft("d"))
    nack(world, lease)
    publish(world, draft("e"))
    assert drained(world) == ["c", "d", "e"]


def test_what_came_back_is_not_noted_for_ever_and_is_the_oldest_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leasing, "CAME_FREE_MAX", 8)
    world = queue(max_messages=20, overflow="drop_oldest")
    for n in range(21):
        publish(world, draft(str(n)))
    held = [took(world, 1) for _ in range(20)]
    for lease in held[10:]:
        ack(world, lease)
    for lease in held[:10]:
        nack(world, lease)
    assert len(world.main.core.came_free or ()) <= 8
    for n in range(11):
        publish(world, draft(f"new {n}"))
    assert {*drained(world)} == {*(str(n) for n in range(2, 11)), *(f"new {n}" for n in range(11))}


def test_after_a_crash_it_ends_no_more_than_before() -> None:
    world = by_bytes()
    publish(world, *[draft(text(f"old {n}", 1_900)) for n in range(10)])
    publish(world, draft(text("new", 1_900)))
    crashed(world)
    publish(world, draft(text("newer", 1_900)))
    assert world.partition.state.ended == {"overflow": 2} and holds(world) <= LIMIT
    assert names(drained(world)) == [*(f"old {n}" for n in range(2, 10)), "new", "newer"]


def test_a_full_queue_refuses_by_bytes_what_does_not_fit_and_stores_the_rest() -> None:
    world = by_bytes("reject")
    answers = publish(world, *[draft(text(str(n), 1_900)) for n in range(12)])
    stored = [one for one in answers if isinstance(one, int)]
    assert len(stored) == 10 and all(isinstance(one, QueueFull) for one in answers[10:])
    assert holds(world) <= LIMIT and isinstance(publish(world, draft(text("more", 1_900)))[0], QueueFull)
    ack(world, took(world, 1))
    assert isinstance(publish(world, draft(text("more", 1_500)))[0], int), "what was acked counts no longer"


def test_at_the_bound_of_one_commit_the_next_ones_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_limits, "EVICTION_READS_PER_COMMIT", 4)
    world = queue(max_messages=20, overflow="drop_oldest")
    for n in range(20):
        publish(world, draft(f"old {n}"))
    answers = world.publish_drafts([draft(str(n)) for n in range(20)])
    assert world.commit() and isinstance(answers[0], Published)
    assert 20 < world.partition.state.live < 40, "it is passed for a moment"
    world.settle_down()
    assert drained(world) == [str(n) for n in range(20)]


def counted_reads(world: World, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Where each look at the log of a queue begins, from now on."""
    found: list[int] = []
    read = world.partition.read

    def counted(offset: int, shelf: int = 0) -> Chunk | None:
        found.append(offset)
        return read(offset, shelf)

    monkeypatch.setattr(world.partition, "read", counted)
    return found


def behind_held_ones(held: int, free: int) -> tuple[World, list[Lease]]:
    """A full queue whose oldest messages, each of a chunk of its own, consumers hold."""
    world = queue(max_messages=held + free, overflow="drop_oldest")
    for n in range(held + free):
        publish(world, draft(f"old {n}"))
    leases = [lease for _ in range(held) if (lease := took(world, 1)) is not None]
    world.settle_down()
    return world, leases


def test_a_look_behind_many_that_consumers_hold_is_shared_out_among_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_limits, "EVICTION_READS_PER_COMMIT", 8)
    world, _ = behind_held_ones(100, 5)
    reads, commits = counted_reads(world, monkeypatch), 0
    answers = world.publish_drafts([draft("new")])
    while world.partition.state.live != 105 or not answers:
        reads.clear()
        assert world.commit() and len(reads) <= 8 + 2, "two that find nothing more"
        assert world.partition.state.live <= 106
        commits += 1
    assert 100 // 8 <= commits <= 100 // 8 + 3 and world.partition.state.ended == {"overflow": 1}
    assert drained(world) == ["old 101", "old 102", "old 103", "old 104", "new"]


def test_what_comes_back_is_found_without_a_look_at_what_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    world, leases = behind_held_ones(100, 20)
    publish(world, draft("first"))  # looks through all of them, once
    reads = counted_reads(world, monkeypatch)
    for n in range(10):
        nack(world, leases[n])
        publish(world, draft(f"a{n}"))  # ends what came back
        nack(world, leases[99 - n])
        publish(world, draft(f"b{n}"))
    assert len(reads) <= 3 * 20, "of each publish those that find nothing, and the newest chunk"
    assert world.partition.state.ended == {"overflow": 21}
    ended = {f"old {n}" for n in (*range(10), *range(90, 101))}
    for lease in leases[10:90]:
        nack(world, lease)
    assert sorted(drained(world)) == sorted(
        {f"old {n}" for n in range(120)} - ended | {"first"} | {f"{x}{n}" for n in range(10) for x in "ab"}
    )


def test_what_came_back_in_great_number_is_found_in_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eviction, "EVICTION_CHUNKS_KEPT", 4)
    world, leases = behind_held_ones(20, 5)
    publish(world, draft("first"))
    for lease in reversed(leases[4:]):
        nack(world, lease)
    for n in range(3):
        publish(world, draft(f"new {n}"))
    for lease in leases[:4]:
        nack(world, lease)
    assert world.partition.state.ended == {"overflow": 4}
    assert sorted(drained(world)) == sorted(
        [f"old {n}" for n in range(25) if n not in (20, 4, 5, 6)] + ["first"] + [f"new {n}" for n in range(3)]
    )


def test_what_came_back_and_is_held_again_is_not_ended() -> None:
    world, leases = behind_held_ones(4, 2)
    publish(world, draft("first"))
    nack(world, leases[1])
    again = took(world, 1)
    publish(world, draft("second"))
    assert texts(again) == ["old 1"] and ack(world, again) == [True]
    assert drained(world) == ["first", "second"]


@pytest.mark.parametrize("landed", [False, True])
def test_room_that_a_crash_left_owing_is_made_by_the_next_publish(
    monkeypatch: pytest.MonkeyPatch, landed: bool
) -> None:
    monkeypatch.setattr(queue_limits, "EVICTION_READS_PER_COMMIT", 4)
    world = queue(max_messages=20, overflow="drop_oldest")
    for n in range(20):
        publish(world, draft(f"old {n}"))
    publish(world, *[draft(str(n)) for n in range(20)])
    world.committer.prepare()  # it goes on to make room
    crashed(world, landed=landed)
    assert world.partition.state.live > 20
    publish(world, draft("20"))
    world.settle_down()
    assert drained(world) == [str(n) for n in range(1, 21)]
