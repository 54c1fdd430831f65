"""A message that is scheduled or ready can be cancelled by its id, once, and is never handed out after that."""

from __future__ import annotations

import asyncio

import pytest

from backend_store.client.cancel import CancelOutcome
from backend_store.client.search import search
from backend_store.core.log.chunk import KIND_JSON, Draft, message_id
from backend_store.core.log.records import PartitionState
from backend_store.core.log.sublogs import SCHEDULED, VIEW_MAIN
from backend_store.model import InvalidRequest, QueueConfig, QueueNotFound
from backend_store.storage.engine import Table
from backend_store.storage.keys import log_range
from tests.support.world import REPLICA, World, queue_of, receipts_by_seq

pytestmark = pytest.mark.anyio


async def cancelled(world: World, message: str) -> CancelOutcome:
    """The answer; commits as long as one is waited for."""
    asking = asyncio.create_task(queue_of(world).cancel(message))
    async with asyncio.timeout(5):
        while not asking.done():
            await asyncio.sleep(0)
            world.commit()
    return await asking


async def asked(world: World, message: str) -> asyncio.Task[CancelOutcome]:
    """A cancellation that waits for its commit."""
    asking = asyncio.create_task(queue_of(world).cancel(message))
    async with asyncio.timeout(5):
        while not world.committer.is_asked:  # noqa: ASYNC110 - nobody tells when it is
            await asyncio.sleep(0)
    return asking


def named(world: World, *ids: str, due_in_ms: int = 0, priority: int = 0) -> None:
    due_ms = world.now_ms + due_in_ms if due_in_ms else 0
    world.publish_drafts([Draft(KIND_JSON, b"1", {"id": one}, priority=priority, due_ms=due_ms) for one in ids])
    world.commit()


def handed_out(world: World) -> list[int]:
    found: list[int] = []
    while (lease := world.take(100)) is not None:
        found += receipts_by_seq(lease)
    return found


async def test_in_strict_order_the_next_message_waits_until_the_cancelled_one_cannot_come_back() -> None:
    world = World(config=QueueConfig(ordering="strict", lease_mode="memory"))
    named(world, "a", "b")
    asking = await asked(world, "a")
    assert handed_out(world) == []
    world.commit()
    assert await asking == "cancelled" and handed_out(world) == [1]


async def test_a_ready_message_is_cancelled_by_the_id_its_place_gives_it() -> None:
    world = World()
    world.stored(b"0", b"1", b"2")
    assert await cancelled(world, message_id(0, 1)) == "cancelled"
    assert world.counts == (2, 0, 0) and handed_out(world) == [0, 2]


async def test_a_scheduled_message_is_cancelled_by_the_id_of_its_producer() -> None:
    world = World()
    named(world, "a", "b", "c", due_in_ms=1000)
    assert await cancelled(world, "b") == "cancelled"
    assert world.counts == (0, 0, 2)
    world.pass_time(1000)
    assert world.counts == (2, 0, 0) and handed_out(world) == [0, 2]


async def test_a_ready_message_in_any_lane_is_cancelled_by_the_id_of_its_producer() -> None:
    world = World(config=QueueConfig(priorities=3))
    named(world, "a", priority=2)
    named(world, "b", priority=1)
    assert await cancelled(world, "b") == "cancelled"
    assert handed_out(world) == [0]


async def test_cancelling_twice_finds_nothing_the_second_time() -> None:
    world = World()
    named(world, "a", "b", due_in_ms=1000)
    assert [await cancelled(world, "a") for _ in range(2)] == ["cancelled", "unknown"]
    named(world, "c")
    assert [await cancelled(world, "c") for _ in range(2)] == ["cancelled", "unknown"]
    assert await cancelled(world, "nobody's") == "unknown"


async def test_what_a_consumer_has_is_not_cancelled_and_what_it_gave_back_is() -> None:
    world = World()
    world.stored(b"0", b"1")
    lease = world.leased(1)
    assert await cancelled(world, message_id(0, 0)) == "in_flight"
    world.nack(*receipts_by_seq(lease).values(), due_ms=world.now_ms + 1000)
    assert await cancelled(world, message_id(0, 0)) == "cancelled", "it is delayed: nobody has it"
    world.pass_time(1000)
    assert handed_out(world) == [1] and world.view.delayed == 0


async def test_an_acked_message_is_unknown() -> None:
    world = World()
    world.stored(b"0", b"1")
    world.ack(*receipts_by_seq(world.leased(1)).values())
    assert await cancelled(world, message_id(0, 0)) == "unknown"


async def test_an_id_that_is_used_again_means_the_message_that_is_still_there() -> None:
    world = World()
    named(world, "a", "keeps-the-chunk", due_in_ms=1000)
    assert await cancelled(world, "a") == "cancelled"
    named(world, "a")
    assert await cancelled(world, "a") == "cancelled"
    assert world.counts == (0, 0, 1)


async def test_the_answer_comes_when_the_end_is_on_the_disk() -> None:
    world = World()
    world.stored(b"0")
    asking = await asked(world, message_id(0, 0))
    assert world.committer.prepare() and not asking.done()
    world.committer.land()
    assert await asking == "cancelled"


@pytest.mark.parametrize("due_in_ms", [0, 1000])
async def test_a_crash_before_the_answer_leaves_it_whole_and_one_after_it_gone(due_in_ms: int) -> None:
    world = World()
    named(world, "a", "b", due_in_ms=due_in_ms)
    asking = await asked(world, "a")
    world.committer.prepare()
    world.crash()
    asking.cancel()
    world.pass_time(2000)
    assert world.counts == (2, 0, 0)
    assert await cancelled(world, "a") == "cancelled"
    world.crash()
    world.pass_time(2000)
    assert world.counts == (1, 0, 0) and handed_out(world) == [1]


async def test_two_of_one_due_time_cancelled_with_one_commit_are_both_gone_from_the_schedule() -> None:
    world = World()
    named(world, "a", "b", "c", due_in_ms=1000)
    told: list[object] = []
    for index in (0, 1):
        assert world.main.cancel(SCHEDULED, 0, index, told.append)
    world.commit()
    assert len(told) == 2
    world.crash()
    assert world.counts == (0, 0, 1)
    world.pass_time(1000)
    assert world.counts == (1, 0, 0) and handed_out(world) == [2]


async def test_one_that_becomes_due_while_its_end_is_on_the_way_is_counted_once() -> None:
    for step in ("asked", "on its way", "stored"):
        world = World()
        named(world, "a", "b", due_in_ms=1000)
        told: list[object] = []
        assert world.main.cancel(SCHEDULED, 0, 0, told.append)
        if step != "asked":
            world.committer.prepare()
        if step == "stored":
            world.commit()
        world.pass_time(1000)
        assert world.view.delayed == 0
        world.commit()
        assert told and world.counts == (1, 0, 0) and handed_out(world) == [1]


async def test_the_rows_of_a_chunk_that_was_cancelled_whole_are_gone() -> None:
    world = World()
    named(world, "a", "b", due_in_ms=1000)
    for one in ("a", "b"):
        await cancelled(world, one)
    for table in (Table.DUE, Table.BY_ID, Table.LANES, Table.MARKS):
        assert world.engine.scan(table, *log_range(REPLICA), 10) == [], table


async def test_cancelled_messages_are_counted_and_are_nobodys_dead_letters() -> None:
    for grave in (".dead", "graveyard", None):
        world = World(config=QueueConfig(dead_letter_queue=grave))
        world.stored(b"0", b"1")
        await cancelled(world, message_id(0, 0))
        state: PartitionState = world.partition.state
        assert state.ended == {"cancelled": 1} and state.acked_total == 0 and not state.views


async def test_a_stream_keeps_what_it_has() -> None:
    world = World(kind="stream")
    world.stored(b"0")
    with pytest.raises(InvalidRequest, match="stream"):
        await queue_of(world).cancel(message_id(0, 0))


async def test_a_queue_that_is_deleted_meanwhile_answers_so() -> None:
    world = World()
    world.stored(b"0")
    asking = await asked(world, message_id(0, 0))
    world.partition.close()
    with pytest.raises(QueueNotFound):
        await asking
    with pytest.raises(QueueNotFound):
        await queue_of(world).cancel(message_id(0, 0))


async def test_a_search_gives_up_after_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend_store.client.search.CANCEL_LOOKS_MAX", 3)
    world = World()
    for number in range(5):
        named(world, f"m{number}")
    looked_at = list(search(world.partition, VIEW_MAIN, "m4"))
    assert len(looked_at) == 3
