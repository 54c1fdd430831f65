"""A deleted queue whose messages go to another one: all of them do, and so does what is still published to its name."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from backend_store.client.embedded import EmbeddedStore, Forward
from backend_store.client.peek import PeekFilter
from backend_store.core.log.chunk import KIND_JSON, Draft, blocks_of
from backend_store.core.log.sublogs import SCHEDULED
from backend_store.model import Published, PushqError, QueueConfig, QueueFull
from backend_store.node.node import Node
from backend_store.storage.memory import MemoryEngine
from tests.support.patience import eventually
from tests.support.queues import column, draft
from tests.support.stores import asked, died, drained, made, opened, published, receipts, reopened
from tests.support.world import Consumer

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store() -> AsyncIterator[EmbeddedStore]:
    store = await opened()
    yield store
    await store.close()


async def forward(store: EmbeddedStore, **settings: object) -> Forward:
    """What is published to the moved queue `a` goes to `b`."""
    await made(store, "b", **settings)
    await made(store, "a")
    await store.move_queue("default", "a", "b")
    found = store.target_of("default", "a")
    assert isinstance(found, Forward)
    return found


async def gone(store: EmbeddedStore) -> None:
    """Every queue that was moved has left."""
    await eventually(lambda: all(moved.is_empty for moved in store.metadata.moved.values()))


async def test_what_is_confirmed_while_its_queue_leaves_is_moved_as_well(store: EmbeddedStore) -> None:
    target, queue = await made(store, "b"), await made(store, "a")
    confirmed, refused = list[Published](), list[PushqError]()
    is_over = False

    async def busy() -> None:
        """A caller that has the queue in its hands already."""
        while not is_over:
            queue.publish(
                blocks_of([draft("1")]).blocks,
                lambda answer: confirmed.append(answer) if isinstance(answer, Published) else refused.append(answer),
            )
            await asyncio.sleep(0)

    moving = asyncio.create_task(store.move_queue("default", "a", "b"))
    await asyncio.sleep(0)
    publishing = asyncio.create_task(busy())
    await moving
    await gone(store)
    is_over = True
    await publishing
    await store.node.committer.drain()
    assert confirmed and {error.code for error in refused} <= {"queue-not-found"}
    assert target.stats().ready == len(confirmed)


async def test_every_message_goes_whoever_has_it_and_whatever_it_waits_for(store: EmbeddedStore) -> None:
    target, queue = await made(store, "b"), await made(store, "a", max_attempts=1)
    await died(queue, draft("dead"))
    later_ms = store.steady_ms() + 3_600_000
    await published(queue, draft("held"), draft("later", due_ms=later_ms))
    holder = Consumer()
    lease = queue.take(1, holder, 30_000)
    assert lease is not None
    given = receipts(lease)
    await store.move_queue("default", "a", "b")
    await gone(store)
    assert holder.lost_receipts == given
    assert sorted(await drained(target)) == ["dead", "held"] and target.stats().delayed == 1


async def test_dead_letters_that_somebody_holds_go_as_well(store: EmbeddedStore) -> None:
    target, queue = await made(store, "b"), await made(store, "a", max_attempts=1)
    await died(queue, draft("held"), draft("dead"))
    holder = Consumer()
    lease = store.queue("default", "a.dead").take(1, holder, 30_000)
    assert lease is not None
    given = receipts(lease)
    await store.move_queue("default", "a", "b")
    await gone(store)
    assert holder.lost_receipts == given
    assert sorted(await drained(target)) == ["dead", "held"]


async def test_a_moved_message_says_that_its_queue_was_deleted(store: EmbeddedStore) -> None:
    target, queue = await made(store, "b"), await made(store, "a")
    await published(queue, draft("1"))
    await store.move_queue("default", "a", "b")
    await gone(store)
    (end,) = column(target.take(1, Consumer(), 30_000), "dead")
    assert (end["from"], end["reason"], end["attempts"]) == ("a", "queue_deleted", 0)


async def test_a_moved_message_keeps_its_priority_and_a_letter_among_them_the_one_of_its_first_life(
    store: EmbeddedStore,
) -> None:
    target, queue = await made(store, "b", priorities=5), await made(store, "a", priorities=3)
    dying = await made(store, "dying", priorities=5, max_attempts=1, dead_letter_queue="a")
    await died(dying, draft("letter", priority=4))
    await eventually(lambda: queue.stats().ready == 1)
    await published(queue, draft("0"))
    await published(queue, draft("1", priority=1))
    await store.move_queue("default", "a", "b")
    await gone(store)
    await published(target, draft("own", priority=2))
    items = (await target.peek(PeekFilter())).items
    assert [(bytes(i.message["body"]), i.message["priority"]) for i in items] == [
        (b"letter", 4),
        (b"own", 2),
        (b"1", 1),
        (b"0", 0),
    ]
    assert await drained(target) == ["letter", "own", "1", "0"]


async def test_what_is_still_published_to_a_moved_queue_says_its_priority(store: EmbeddedStore) -> None:
    moved = await forward(store, priorities=3)
    await published(moved, draft("high", priority=2))  # type: ignore[arg-type]
    target = store.queue("default", "b")
    (item,) = (await target.peek(PeekFilter())).items
    assert item.message["priority"] == 2 and item.message["dead_letter"]["reason"] == "queue_deleted"


async def test_queues_of_one_name_leave_one_after_the_other_over_restarts() -> None:
    store = await opened()
    full = await made(store, "full", max_messages=1)
    await published(full, draft("in the way"))
    for number in range(2):
        await published(await made(store, "a"), draft(f"first {number}"), draft(f"second {number}"))
        await store.move_queue("default", "a", "full")
    again = await reopened(store)
    target = again.queue("default", "full")
    await again.update_queue("default", "full", QueueConfig(), target.definition.version)
    await eventually(lambda: target.stats().ready == 5)
    await gone(again)
    moved = await drained(target)
    assert sorted(moved) == ["first 0", "first 1", "in the way", "second 0", "second 1"]
    await again.close()


async def test_the_last_queue_of_a_name_says_where_its_publishes_go(store: EmbeddedStore) -> None:
    for target in ("b", "c"):
        await made(store, target)
        await made(store, "a")
        await store.move_queue("default", "a", target)
    await gone(store)
    found = store.target_of("default", "a")
    assert isinstance(found, Forward)
    await published(found, draft("1"))
    assert await drained(store.queue("default", "c")) == ["1"]


async def test_a_publish_that_is_sent_on_keeps_its_id_its_priority_and_its_time(store: EmbeddedStore) -> None:
    sent_on = await forward(store, dedupe="id", priorities=5)
    target = store.queue("default", "b")
    message = draft("1", id="x", priority=3, due_ms=store.steady_ms() + 60_000)
    first = await published(sent_on, message)
    again = await published(sent_on, message)
    assert first.others is None and again.others is not None, "a retry is known by its id"
    stats = target.stats()
    assert (stats.ready, stats.delayed) == (0, 1)
    assert target._partition.read(0, SCHEDULED + 3) is not None


async def test_a_publish_that_is_sent_on_is_answered_by_the_blocks_that_were_stored(store: EmbeddedStore) -> None:
    sent_on = await forward(store, max_messages=500)
    body = b'"%b"' % (b"x" * 500)
    blocks = blocks_of([Draft(KIND_JSON, body, None)] * 1000).blocks
    answer = await asked(lambda reply: sent_on.publish(blocks, reply))
    assert isinstance(answer, Published) and answer.bases is not None and answer.counts is not None
    assert len(answer.counts) == len(answer.bases) > len(blocks) and sum(answer.counts) == 1000
    assert answer.others is not None and sorted(answer.others) == [*range(500, 1000)]
    assert {type(other) for other in answer.others.values()} == {QueueFull}


async def test_what_is_sent_to_a_deleted_queue_goes_on_while_the_clock_is_days_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = EmbeddedStore(Node(MemoryEngine(), directory=None))
    await store.node.start()
    for name in ("old", "new"):
        await made(store, name)
    await store.move_queue("default", "old", "new")
    said = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: said + 8 * 86_400_000_000_000)
    assert store.target_of("default", "old").uid == store.queue("default", "new").uid
    await store.close()
