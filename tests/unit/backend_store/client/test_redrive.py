"""Redrives: which dead letters go where, and what becomes of a job when its target will not have them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from backend_store.client import redrive as redriving
from backend_store.client.dead_letters import Letters, batches, count, portions
from backend_store.client.embedded import EmbeddedQueue, EmbeddedStore
from backend_store.client.redrive import PORTION_SECONDS, Redrive, Redriver
from backend_store.core.leases.leases import Lease
from backend_store.core.log.chunk import KIND_JSON, Chunk, Draft, blocks_of
from backend_store.core.log.sublogs import VIEW_MAIN
from backend_store.core.ready.attempt_policy import Outcome
from backend_store.model import Conflict, Published, PushqError, QueueConfig, QueueNotFound
from backend_store.node.node import Node
from backend_store.storage.memory import MemoryEngine
from tests.support.world import Consumer

pytestmark = pytest.mark.anyio

ONE_ATTEMPT = QueueConfig(max_attempts=1, priorities=3)


@pytest.fixture
async def store() -> AsyncIterator[EmbeddedStore]:
    store = await opened(MemoryEngine())
    yield store
    await store.close()


async def opened(engine: MemoryEngine) -> EmbeddedStore:
    node = Node(engine, directory=None, on_fatal=lambda error: None)
    await node.start()
    return EmbeddedStore(node)


async def made(store: EmbeddedStore, name: str, config: QueueConfig = ONE_ATTEMPT) -> EmbeddedQueue:
    queue, _ = await store.create_queue("default", name, config)
    return queue


async def publish(queue: EmbeddedQueue, *drafts: Draft) -> None:
    done: asyncio.Future[Published | PushqError] = asyncio.get_running_loop().create_future()
    queue.publish(blocks_of(drafts).blocks, done.set_result)
    assert isinstance(await done, Published)


async def died(queue: EmbeddedQueue, *drafts: Draft) -> None:
    """Messages whose only attempt failed; each publish is a chunk of its own."""
    await publish(queue, *drafts)
    while (lease := queue.take(1000, Consumer(), 30_000)) is not None:
        await failed(queue, lease)


async def failed(queue: EmbeddedQueue, lease: Lease) -> None:
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    view = queue._partition.view(VIEW_MAIN)
    view.core.give_back(lease, lease.bits, now_ms=view.partition.steady_ms(), outcome=Outcome.NACKED)
    view.settle({}, done.set_result)
    await done


def letter(number: int, priority: int = 0) -> Draft:
    return Draft(KIND_JSON, b"%d" % number, {"id": f"m{number}"}, priority=priority)


def everything(chunk: Chunk, index: int, end: dict[str, Any]) -> bool:
    return True


def finder(store: EmbeddedStore) -> Callable[[str], EmbeddedQueue]:
    return lambda name: store.queue("default", name)


def letters_of(queue: EmbeddedQueue, to: str | None = None) -> Letters:
    return queue.dead_letters(everything, to, own=False)


async def redriven(store: EmbeddedStore, queue: EmbeddedQueue, to: str | None = None, **more: Any) -> Redrive:
    letters = letters_of(queue, to)
    total = (await queue.count_letters(letters)).total()
    wanted = {"rate_per_s": None, "find": finder(store), **more}
    return queue.redrive(f"r{total}", letters, total=total, **wanted)


# ------------------------------------------------------------------------------------------------ which and where


async def test_messages_of_a_chunk_are_split_by_where_they_go_and_how_soon(store: EmbeddedStore) -> None:
    graveyard = await made(store, "graveyard", QueueConfig())
    queues = [await made(store, f"q{n}", QueueConfig(max_attempts=1, dead_letter_queue="graveyard")) for n in range(2)]
    for queue in queues:
        await died(queue, letter(1), letter(2))
    async with asyncio.timeout(5):
        while graveyard.stats().ready < 4:  # noqa: ASYNC110 - the outbox empties by itself
            await asyncio.sleep(0.001)
    letters = graveyard.dead_letters(everything, None, own=True)
    assert await graveyard.count_letters(letters) == {"q0": 2, "q1": 2}
    assert await graveyard.count_letters(letters._replace(to="q1")) == {"q1": 4}
    assert await graveyard.count_letters(graveyard.dead_letters(everything, None, own=False)) == {}


async def test_what_is_held_or_settled_or_no_dead_letter_is_left_out(store: EmbeddedStore) -> None:
    queue = await made(store, "q")
    await died(queue, *(letter(n) for n in range(4)))
    await publish(queue, letter(9))
    companion = store.queue("default", "q.dead")
    lease = companion.take(1, Consumer(), 30_000)
    assert lease is not None
    assert (await queue.count_letters(letters_of(queue))).total() == 3
    companion.settle_lease(lease)
    await store.node.committer.drain()
    assert (await queue.count_letters(letters_of(queue))).total() == 3
    assert (await queue.count_letters(queue.dead_letters(everything, None, own=True))).total() == 3


async def test_a_wish_is_asked_about_each_message(store: EmbeddedStore) -> None:
    queue = await made(store, "q")
    await died(queue, *(letter(n) for n in range(5)))
    seen: list[tuple[int, str]] = []

    def wanted(chunk: Chunk, index: int, end: dict[str, Any]) -> bool:
        seen.append((index, end["reason"]))
        return index % 2 == 0

    assert (await queue.count_letters(queue.dead_letters(wanted, None, own=False))).total() == 3
    assert seen == [(n, "max_attempts") for n in range(5)]


async def test_counting_gives_everybody_else_a_turn_after_each_chunk(store: EmbeddedStore) -> None:
    queue = await made(store, "q")
    for n in range(5):
        await died(queue, letter(n))
    assert sum(1 for _ in count(letters_of(queue))) == 5


async def test_a_batch_is_cut_into_portions_that_are_all_of_it(store: EmbeddedStore) -> None:
    queue = await made(store, "q")
    await died(queue, *(letter(n) for n in range(7)))
    ((batch,),) = batches(letters_of(queue))
    assert [part.bits for part in portions(batch, None)] == [0b1111111]
    assert [part.bits for part in portions(batch, 3)] == [0b111, 0b111000, 0b1000000]
    assert [part.bits.bit_count() for part in portions(batch, 1)] == [1] * 7


# ------------------------------------------------------------------------------------------------------- jobs


async def test_all_are_moved_with_their_priorities_and_counted_as_they_go(store: EmbeddedStore) -> None:
    queue = await made(store, "q")
    for n in range(40):
        await died(queue, letter(n, priority=n % 3))
    job = await redriven(store, queue)
    await job.ended.wait()
    assert (job.state, job.done, job.total, job.error) == ("done", 40, 40, None)
    assert (queue.stats().ready, queue.stats().dead) == (40, 0)
    assert [chunk.shelf for n in range(3) if (chunk := queue._partition.read(0, n))] == [0, 1, 2]


async def test_a_queue_that_takes_nothing_is_tried_again_until_the_redrive_gives_up(
    store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redriving, "TRANSFER_RETRY_SECONDS", 0.001)
    monkeypatch.setattr(redriving, "REFUSALS_MAX", 3)
    queue = await made(store, "q")
    full = await made(store, "full", QueueConfig(max_messages=1))
    await publish(full, letter(0))
    await died(queue, letter(1), letter(2))
    job = await redriven(store, queue, to="full")
    await job.ended.wait()
    assert (job.state, job.done) == ("failed", 0) and "has 1 message;" in str(job.error)
    assert (queue.stats().dead, store.queue("default", "q.dead").stats().ready) == (2, 2), "they are free again"


async def test_a_target_that_goes_away_meanwhile_leaves_its_messages_and_the_others_go_on(store: EmbeddedStore) -> None:
    queue = await made(store, "q")
    for n in range(4):
        await died(queue, letter(n))
    asked = 0

    def find(name: str) -> EmbeddedQueue:
        nonlocal asked
        asked += 1
        if asked == 2:
            raise QueueNotFound("there is no queue 'q'")
        return store.queue("default", name)

    job = await redriven(store, queue, find=find)
    await job.ended.wait()
    assert (job.state, job.done, job.error) == ("failed", 3, "1 stay: there is no queue 'q'")


async def test_a_redrive_of_a_queue_that_is_deleted_ends(store: EmbeddedStore) -> None:
    queue = await made(store, "q")
    await died(queue, *(letter(n) for n in range(5)))
    job = await redriven(store, queue, rate_per_s=20.0)
    await store.delete_queue("default", "q")
    await job.ended.wait()
    assert job.state == "failed" and "deleted" in str(job.error)


async def test_the_rate_is_kept(store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def make(self: Redriver, *given: Any, **more: Any) -> None:
        init(self, *given, **more)
        self._clock, self._next_at = lambda: now[0], now[0]

    async def rest(self: Redriver, seconds: float) -> None:
        now[0] += max(0, seconds)

    init = Redriver.__init__
    monkeypatch.setattr(Redriver, "__init__", make)
    monkeypatch.setattr(Redriver, "_rest", rest)
    queue = await made(store, "q")
    await died(queue, *(letter(n) for n in range(100)))
    job = await redriven(store, queue, rate_per_s=50.0)
    await job.ended.wait()
    assert job.done == 100 and now[0] == pytest.approx(2.0, abs=PORTION_SECONDS)


async def test_cancelling_returns_when_nothing_more_is_moved(store: EmbeddedStore) -> None:
    queue = await made(store, "q")
    await died(queue, *(letter(n) for n in range(5)))
    job = await redriven(store, queue, rate_per_s=0.1)
    with pytest.raises(Conflict, match=job.id):
        await redriven(store, queue)
    await job.cancel()
    assert (job.state, job.done, queue.stats().dead) == ("cancelled", 0, 5)
    again = await redriven(store, queue)
    await again.ended.wait()
    assert again.done == 5


async def test_a_redrive_is_one_by_the_name_of_the_queue_and_of_its_companion(store: EmbeddedStore) -> None:
    queue = await made(store, "q")
    await died(queue, letter(1))
    job = await redriven(store, queue, rate_per_s=0.1)
    companion = store.queue("default", "q.dead")
    assert companion.redrives.get(job.id) is job
    with pytest.raises(Conflict, match=job.id):
        await redriven(store, companion)
    await job.cancel()


async def test_a_server_that_stops_ends_its_redrives_and_the_rest_is_there_after_it() -> None:
    engine = MemoryEngine()
    store = await opened(engine)
    queue = await made(store, "q")
    await died(queue, *(letter(n) for n in range(5)))
    job = await redriven(store, queue, rate_per_s=0.1)
    await store.close()
    assert job.state == "cancelled"
    store = await opened(engine.crash())
    assert store.queue("default", "q").stats().dead == 5
    await store.close()


async def test_only_the_last_jobs_are_remembered_and_each_keeps_its_number(
    store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redriving, "REDRIVES_REMEMBERED_MAX", 2)
    queue = await made(store, "q")
    for n in range(3):
        job = queue.redrive(f"r{n}", letters_of(queue), total=0, rate_per_s=None, find=finder(store))
        await job.ended.wait()
    assert queue.redrives.get("r0") is None
    assert [(number, job.id) for number, job in queue.redrives.since(0)] == [(1, "r1"), (2, "r2")]
    assert [job.id for _, job in queue.redrives.since(2)] == ["r2"]


async def test_as_many_go_as_their_queue_has_room_for_and_the_job_says_why_the_others_wait(
    store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redriving, "TRANSFER_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(redriving, "REFUSALS_MAX", 3)
    queue, other = await made(store, "q"), await made(store, "other", QueueConfig(max_messages=5))
    await died(queue, *(letter(n) for n in range(8)))
    job = await redriven(store, queue, "other")
    async with asyncio.timeout(5):
        await job.ended.wait()
    assert (job.state, job.done, job.total) == ("failed", 5, 8)
    assert job.error is not None and "has 5 messages" in job.error
    assert (other.stats().ready, queue.stats().dead) == (5, 3)
