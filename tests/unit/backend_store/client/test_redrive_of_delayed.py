"""Redrives of a dead-letter queue that has a delay of its own: what waits there only for that goes back at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from backend_store.client.dead_letters import LetterFilter
from backend_store.client.embedded import EmbeddedQueue
from backend_store.client.redrive import REFUSALS_MAX, Redrive
from backend_store.core.log.sublogs import VIEW_MAIN
from backend_store.core.ready.attempt_policy import Outcome
from backend_store.model import QueueConfig
from backend_store.storage.engine import Table
from tests.support.node_world import TENANT, NodeWorld
from tests.support.partitioned import all_taken, draft, drain, rows_of, send
from tests.support.world import Consumer

DELAY_MS = 60_000


@pytest.fixture
def world() -> Iterator[NodeWorld]:
    world = NodeWorld()
    yield world
    world.close()


def buried(world: NodeWorld, count: int, **settings: Any) -> tuple[EmbeddedQueue, EmbeddedQueue]:
    """A queue, and the one where so many of its messages wait as dead letters, all of one chunk."""
    graves = world.make("graves", QueueConfig(delay_ms=DELAY_MS, **settings))
    queue = world.make("q", QueueConfig(max_attempts=1, dead_letter_queue="graves"))
    send(world, queue, *map(draft, range(count)))
    view = queue._partition.view(VIEW_MAIN)

    def fail() -> None:
        lease = queue.take(64, Consumer(), 30_000)
        assert lease is not None
        view.core.give_back(lease, lease.bits, now_ms=world.now_ms, outcome=Outcome.NACKED)
        view.settle({}, lambda done: None)

    world.tell(fail)
    world.settle()
    assert counts(graves) == (0, count)
    return queue, graves


def counts(queue: EmbeddedQueue) -> tuple[int, int]:
    """(ready, delayed)"""
    stats = queue.stats()
    return stats.ready, stats.delayed


def redriven(world: NodeWorld, graves: EmbeddedQueue, wanted: LetterFilter, to: str | None = None) -> Redrive:
    letters = graves.dead_letters(wanted, to, own=True)
    total = world.do(graves.count_letters(letters)).total()

    async def begin() -> Redrive:
        find = lambda name: world.store.queue(TENANT, name)  # noqa: E731
        return graves.redrive("r", letters, total=total, rate_per_s=None, find=find)

    job = world.do(begin())
    world.settle()
    return job


def test_letters_whose_delay_is_not_over_go_back_and_are_ready_at_once(world: NodeWorld) -> None:
    queue, graves = buried(world, 5)
    job = redriven(world, graves, LetterFilter())
    assert (job.state, job.total, job.done) == ("done", 5, 5)
    assert (counts(queue), counts(graves)) == ((5, 0), (0, 0))
    assert sorted(drain(world, queue)) == [0, 1, 2, 3, 4]
    world.pass_time(DELAY_MS)
    assert (counts(queue), counts(graves)) == ((0, 0), (0, 0))
    assert not [name for name in rows_of(world, [graves._partition.replica]) if Table.LOG.value in name]


@pytest.mark.parametrize("is_crashed", [False, True])
def test_those_that_nobody_asked_for_come_when_their_delay_is_over(world: NodeWorld, is_crashed: bool) -> None:
    _, graves = buried(world, 5)
    job = redriven(world, graves, LetterFilter(ids=frozenset(("m1", "m3"))))
    assert (job.state, job.total, job.done) == ("done", 2, 2)
    assert counts(graves) == (0, 3)
    if is_crashed:
        world.crash()
        graves = world.queue("graves")
        assert counts(graves) == (0, 3)
    world.pass_time(DELAY_MS)
    assert counts(graves) == (3, 0)
    assert drain(world, graves) == [0, 2, 4] and counts(graves) == (0, 0)
    assert sorted(drain(world, world.queue("q"))) == [1, 3]


@pytest.mark.parametrize("ordering", ["best_effort", "strict"])
def test_those_that_find_no_room_wait_on_for_the_end_of_their_delay(world: NodeWorld, ordering: str) -> None:
    _, graves = buried(world, 3, ordering=ordering)
    full = world.make("full", QueueConfig(max_messages=1))
    send(world, full, draft(9))
    job = redriven(world, graves, LetterFilter(), "full")
    world.pass_time(REFUSALS_MAX // 2 * 1000)
    assert job.state == "running" and all_taken(world, graves) == {}
    world.pass_time(DELAY_MS)
    assert (job.state, job.done) == ("failed", 0)
    assert counts(graves) == (3, 0) and drain(world, graves) == [0, 1, 2]


def test_letters_whose_delay_is_over_go_back_whether_or_not_somebody_looked(world: NodeWorld) -> None:
    queue, graves = buried(world, 3)
    world.pass_time(DELAY_MS)
    assert counts(graves) == (3, 0)
    job = redriven(world, graves, LetterFilter())
    assert (job.state, job.done, counts(graves)) == ("done", 3, (0, 0))
    assert all_taken(world, graves) == {} and drain(world, queue) == [0, 1, 2]


def test_what_a_deleted_queue_had_for_later_is_still_for_later_where_a_redrive_sends_it(world: NodeWorld) -> None:
    source, heir, other = (world.make(name, QueueConfig()) for name in ("source", "heir", "other"))
    due_ms = world.now_ms + DELAY_MS
    send(world, source, draft(1, due_ms=due_ms))
    world.start(world.store.move_queue(TENANT, "source", "heir"))
    world.settle()
    assert counts(heir) == (0, 1)
    job = redriven(world, heir, LetterFilter(reason="queue_deleted"), "other")
    assert (job.state, job.done) == ("done", 1)
    assert (counts(heir), counts(other)) == ((0, 0), (0, 1))
    world.pass_time(DELAY_MS)
    assert drain(world, other) == [1] and counts(heir) == (0, 0)
