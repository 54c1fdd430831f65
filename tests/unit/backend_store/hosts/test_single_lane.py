"""Queues of independent hosts that are decided over all of their messages: each lies in one lane."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from backend_store.client.dead_letters import LetterFilter
from backend_store.core.leases.receipts import partition_of_token
from backend_store.model import Conflict, InvalidRequest, Published, PushqError, QueueConfig, QueueFull, Replication
from backend_store.remote.queues.laned import LanedQueue
from backend_store.remote.queues.queue import RemoteQueue
from backend_store.remote.queues.streams import RemoteStream
from backend_store.remote.store import RemoteBackends
from tests.support.lanes import TENANT, Lanes, Taker, columns
from tests.support.patience import eventually

pytestmark = pytest.mark.anyio

SETTINGS: list[dict[str, Any]] = [
    {"kind": "stream"},
    {"partitions": 2},
    {"sequencing": "clock"},
    {"max_messages": 10},
    {"max_bytes": 1_000},
]


@pytest.fixture
async def lanes() -> AsyncIterator[Lanes]:
    async with Lanes() as world:
        yield world


async def made(store: RemoteBackends, name: str = "q", **settings: Any) -> RemoteQueue:
    queue, _ = await store.create_queue(TENANT, name, QueueConfig(**{"encrypted": False, **settings}))
    return queue


async def publish(queue: RemoteQueue, *bodies: bytes, **known_by: Any) -> Published | PushqError:
    done: asyncio.Future[Published | PushqError] = asyncio.get_running_loop().create_future()
    queue.publish(list(queue.blocks(columns(bodies, **known_by), None).blocks), done.set_result)
    return await done


def where(lanes: Lanes, name: str) -> list[int]:
    """The lanes that have something of the queue."""
    return [n for n, node in enumerate(lanes.nodes) if (TENANT, name) in node.metadata.queues]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda one: next(iter(one)))
async def test_what_is_decided_over_all_messages_lies_in_one_lane(lanes: Lanes, settings: dict[str, Any]) -> None:
    store = await lanes.store()
    queue = await made(store, **settings)
    assert not isinstance(queue, LanedQueue)
    assert isinstance(queue, RemoteStream) == (settings.get("kind") == "stream")
    assert where(lanes, "q") == [queue.home.shard]


async def test_such_queues_take_the_lanes_by_turns(lanes: Lanes) -> None:
    store = await lanes.store()
    homes = [(await made(store, f"q{n}", max_messages=10)).home.shard for n in range(6)]
    assert sorted(homes) == [0, 0, 1, 1, 2, 2]


async def test_their_messages_come_from_whoever_owns_that_lane(lanes: Lanes) -> None:
    store, other = await lanes.store(), await lanes.store()
    for number in range(3):  # one in each lane
        name = f"q{number}"
        queue = await made(store, name, max_messages=100)
        found = await publish(queue, b"1", b"2", keys=["a", "b"])
        assert isinstance(found, Published) and found.count == 2
        lane = queue.home.shard
        lanes.own(lane, "h0" if lanes.owners[lane] != "h0" else "h1")
        await eventually(lambda name=name: (TENANT, name) in other.metadata.queues)  # type: ignore[misc]
        taker = Taker(other.queue(TENANT, name), 5)  # type: ignore[arg-type]
        await eventually(lambda taker=taker: sorted(taker.bodies) == [b"1", b"2"])  # type: ignore[misc]
        assert partition_of_token(taker.leases[0].token) in (None, 0)


async def test_a_limit_is_for_all_messages_whichever_gateway_is_asked(lanes: Lanes) -> None:
    store, other = await lanes.store(), await lanes.store()
    queue = await made(store, max_messages=3)
    assert isinstance(await publish(queue, b"1", b"2"), Published)
    await eventually(lambda: (TENANT, "q") in other.metadata.queues)
    assert isinstance(await publish(other.queue(TENANT, "q"), b"3", keys=["k"]), Published)
    assert isinstance(await publish(queue, b"4"), QueueFull)


async def test_a_queue_that_has_lanes_keeps_them(lanes: Lanes) -> None:
    store = await lanes.store()
    await made(store)
    with pytest.raises(InvalidRequest, match="max_messages") as refused:
        await store.update_queue(TENANT, "q", QueueConfig(encrypted=False, max_messages=2), 1)
    assert [one.pointer for one in refused.value.errors] == ["/max_messages"]
    assert where(lanes, "q") == [0, 1, 2]


async def test_what_goes_beside_a_queue_of_one_lane_is_refused_where_it_asks_for_lanes(lanes: Lanes) -> None:
    store = await lanes.store()
    await made(store, "graves", max_messages=10)
    asked = Replication(model="independent_hosts")
    with pytest.raises(InvalidRequest, match="cannot be replicated like this: its place has") as refused:
        await made(store, "orders", dead_letter_queue="graves", replication=asked)
    assert [one.pointer for one in refused.value.errors] == ["/replication/model"]
    queue = await made(store, "orders", dead_letter_queue="graves")
    assert queue.replication.model == "leader_follower" and where(lanes, "orders") == where(lanes, "graves")


async def test_a_queue_of_one_lane_stays_so_without_the_setting(lanes: Lanes) -> None:
    store = await lanes.store()
    queue = await made(store, max_messages=2)
    await store.update_queue(TENANT, "q", QueueConfig(encrypted=False), 1)
    await eventually(lambda: queue.definition.version == 2)
    for number in range(5):
        assert isinstance(await publish(queue, b"%d" % number), Published)
    assert where(lanes, "q") == [queue.home.shard]


async def test_what_names_such_a_queue_lies_beside_it(lanes: Lanes) -> None:
    store = await lanes.store()
    results = [await made(store, f"results{n}", max_messages=10) for n in range(3)]
    for number, one in enumerate(results):
        jobs = await made(store, f"jobs{number}", colocate_with=one.name)
        failing = await made(store, f"failing{number}", dead_letter_queue=one.name)
        assert jobs.home is failing.home is one.home
        assert jobs.is_colocated_with(one)


async def test_an_ack_publishes_into_the_queue_beside_it_in_one_step(lanes: Lanes) -> None:
    store = await lanes.store()
    results = await made(store, "results", max_messages=10)
    jobs = await made(store, "jobs", colocate_with="results")
    await publish(jobs, b"job")
    taker = Taker(jobs, 1)  # type: ignore[arg-type]
    await eventually(lambda: taker.bodies == [b"job"])
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    blocks = list(results.blocks(columns([b"result"]), None).blocks)
    jobs.settle_and_publish(taker.receipts, [(results, blocks)], done.set_result)
    assert not isinstance(await done, PushqError)
    found = Taker(results, 1)  # type: ignore[arg-type]
    await eventually(lambda: found.bodies == [b"result"])


async def test_a_queue_with_lanes_cannot_be_colocated(lanes: Lanes) -> None:
    store = await lanes.store()
    await made(store, "results")
    with pytest.raises(Conflict, match="'results' has a lane on each independent host"):
        await made(store, "jobs", colocate_with="results")
    assert (TENANT, "jobs") not in lanes.nodes[0].metadata.elsewhere.by_name
    await made(store, "bounded", max_messages=5)
    with pytest.raises(Conflict, match="'results' has a lane on each independent host"):
        await store.update_queue(
            TENANT, "bounded", QueueConfig(encrypted=False, max_messages=5, colocate_with="results"), 1
        )


async def test_dead_letters_of_lanes_do_not_go_into_one_lane_alone(lanes: Lanes) -> None:
    store = await lanes.store()
    await made(store, "orders")
    await made(store, "graves", max_messages=5)
    with pytest.raises(Conflict, match="'orders' has a lane on each independent host, but 'graves' is on only one"):
        await store.update_queue(TENANT, "orders", QueueConfig(encrypted=False, dead_letter_queue="graves"), 1)


async def test_dead_letters_of_one_lane_do_not_go_into_lanes_where_their_keys_have_others(lanes: Lanes) -> None:
    store = await lanes.store()
    await made(store, "graves")
    with pytest.raises(Conflict, match="'graves' has a lane on each independent host, but 'orders' is on only one"):
        await made(store, "orders", max_messages=5, dead_letter_queue="graves")
    bounded = await made(store, "bounded", max_messages=5)
    with pytest.raises(InvalidRequest, match="'graves' is in another set of lanes"):
        bounded.dead_letters(LetterFilter(), "graves", own=True)


async def test_dead_letters_go_to_the_queue_beside_theirs(lanes: Lanes) -> None:
    store = await lanes.store()
    graves = await made(store, "graves", max_messages=5)
    queue = await made(store, "orders", max_attempts=1, dead_letter_queue="graves")
    await publish(queue, b"order", keys=["k"])
    taker = Taker(queue, 1)  # type: ignore[arg-type]
    await eventually(lambda: len(taker.bodies) == 1)
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    queue.give_back(taker.receipts, 0, done.set_result)
    await done
    dead = Taker(graves, 10)  # type: ignore[arg-type]
    await eventually(lambda: dead.bodies == [b"order"])


async def test_messages_of_a_deleted_queue_move_to_one_of_the_same_lane(lanes: Lanes) -> None:
    store = await lanes.store()
    target = await made(store, "target", max_messages=10)
    queue = await made(store, "source", colocate_with="target")
    await publish(queue, b"1", b"2")
    await store.move_queue(TENANT, "source", "target")
    taker = Taker(target, 5)  # type: ignore[arg-type]
    await eventually(lambda: sorted(taker.bodies) == [b"1", b"2"])
    assert where(lanes, "source") == []


async def test_messages_of_lanes_are_not_moved_by_a_deletion(lanes: Lanes) -> None:
    store = await lanes.store()
    await made(store, "laned")
    await made(store, "single", max_messages=10)
    for source, target in (("laned", "single"), ("single", "laned")):
        with pytest.raises(Conflict, match="'laned' has a lane on each independent host"):
            await store.move_queue(TENANT, source, target)


async def test_a_deleted_queue_goes_from_its_lane(lanes: Lanes) -> None:
    store = await lanes.store()
    for number in range(3):
        await made(store, f"q{number}", max_messages=10)
    for number in range(3):
        await store.delete_queue(TENANT, f"q{number}")
    assert not any(node.metadata.queues for node in lanes.nodes)


async def test_a_queue_made_while_its_lane_was_away_is_there_when_it_is_back(lanes: Lanes) -> None:
    store = await lanes.store()
    lanes.own(2, None)
    await eventually(lambda: not store.homes[2].line.is_open)
    queues = [await made(store, f"q{number}", max_messages=10) for number in range(3)]
    late = next(one for one in queues if one.home.shard == 2)
    answer = asyncio.ensure_future(publish(late, b"1"))
    lanes.own(2, "h3")
    assert isinstance(await answer, Published)
    assert where(lanes, late.name) == [2]
