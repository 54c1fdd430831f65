"""A long-poll that ends without an answer costs no lease and no attempt, however it ends; and it ends with an answer
where there is one.
"""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from backend_store.node.limits import READS_PER_TAKE_MAX
from push.delivery.feeder import feeder_of
from push.delivery.wait_times import WaitTimes
from push.transports import longpoll
from push.transports.longpoll import receive_messages, receive_stream
from tests.support.queues import draft, nack, publish, queue, took
from tests.support.streams import StreamWorld
from tests.support.world import VISIBILITY_MS, World, queue_of, receipts_by_seq

pytestmark = pytest.mark.anyio


async def never() -> Any:
    await asyncio.Event().wait()


def hub_of(loop: asyncio.AbstractEventLoop) -> Any:
    return SimpleNamespace(
        draining=False,
        spans=None,
        waits={"poll": WaitTimes()},
        full=False,
        loop=loop,
        polls={},
        delivered=0,
        unshown=0,
        clock_ms=lambda: 0,
        store=SimpleNamespace(steady_ms=lambda: 0),
        feeder=lambda queue: feeder_of(queue, loop),
    )


async def received(world: World, *, wait_ms: int = 0) -> list[Any]:
    """The bodies that one receive brings. What the world puts off to the next turn of the loop happens there."""
    loop = asyncio.get_running_loop()
    world.soon = lambda call: loop.call_soon(call) and None  # type: ignore[method-assign]
    poll = asyncio.ensure_future(
        receive_messages(
            hub_of(loop), queue_of(world), limit=10, wait_ms=wait_ms, visibility_ms=VISIBILITY_MS, receive=never
        )
    )
    while not poll.done():
        while world.committer.is_asked:
            world.commit()
        await asyncio.sleep(0)
    answer = poll.result()
    assert answer is not None
    return [message["body"] for message in json.loads(answer)["messages"]]


async def test_a_poll_that_is_cancelled_leaves_its_messages_as_they_were() -> None:
    """A shutdown cancels what does not end in time; the next start must not see an attempt that nobody got."""
    world = World()
    queue: Any = queue_of(world)
    hub = hub_of(asyncio.get_running_loop())
    poll = asyncio.create_task(
        receive_messages(hub, queue, limit=10, wait_ms=60_000, visibility_ms=VISIBILITY_MS, receive=never)
    )
    await asyncio.sleep(0.01)
    world.stored(b"1", b"2")
    assert queue.stats().in_flight == 2
    poll.cancel()
    with pytest.raises(asyncio.CancelledError):
        await poll
    stats = queue.stats()
    assert (stats.in_flight, stats.ready, stats.consumers) == (0, 2, 0)
    lease = world.take()
    assert lease is not None and lease.attempt_of(0) == 1


async def test_a_poll_that_is_cancelled_while_its_messages_wait_for_the_disk_leaves_them_as_they_were() -> None:
    """The commit told one that was not there any more, and the process ended for that."""
    world = queue(lease_mode="replicated")
    publish(world, draft("1"), draft("2"))
    polled: Any = queue_of(world)
    poll = asyncio.ensure_future(
        receive_messages(
            hub_of(asyncio.get_running_loop()),
            polled,
            limit=10,
            wait_ms=0,
            visibility_ms=VISIBILITY_MS,
            receive=never,
        )
    )
    while not world.committer.is_asked:  # noqa: ASYNC110 - the poll takes them in its own turn
        await asyncio.sleep(0)
    for _ in range(10):
        await asyncio.sleep(0)  # from here on it waits for the disk
    poll.cancel()
    with pytest.raises(asyncio.CancelledError):
        await poll
    world.settle_down()
    stats = polled.stats()
    assert (stats.in_flight, stats.ready, stats.consumers) == (0, 2, 0)
    lease = world.take()
    assert lease is not None and lease.attempt_of(0) == 1


@pytest.mark.parametrize("settings", [{"delivery": "at_most_once"}, {"lease_mode": "replicated"}])
@pytest.mark.parametrize("end", ["purge", "delete"])
async def test_a_receive_is_answered_though_its_messages_are_dropped_while_they_wait_for_the_disk(
    settings: Any, end: str
) -> None:
    world = queue(**settings)
    publish(world, draft("1"), draft("2"))
    poll = asyncio.ensure_future(
        receive_messages(
            hub_of(asyncio.get_running_loop()),
            queue_of(world),
            limit=10,
            wait_ms=0,
            visibility_ms=VISIBILITY_MS,
            receive=never,
        )
    )
    while not world.committer.is_asked:  # noqa: ASYNC110 - the poll takes them in its own turn
        await asyncio.sleep(0)
    if end == "purge":
        world.purge()
        world.settle_down()
    else:
        world.partition.close()
    async with asyncio.timeout(5):
        assert json.loads(await poll or b"") == {"messages": []}


def far_back(looks: int, **settings: Any) -> World:
    """After a restart: one message is ready, behind as many that are not as several looks read."""
    world = queue(**settings)
    for number in range(looks * READS_PER_TAKE_MAX):
        publish(world, draft("1", key=str(number)))
        nack(world, took(world), due_ms=world.now_ms + 3_600_000)
    publish(world, draft("2"))
    world.settle_down()
    world.crash()
    return world


@pytest.mark.parametrize("settings", [{}, {"priorities": 2}, {"ordering": "strict"}])
async def test_a_receive_without_waiting_gets_what_is_ready_however_much_lies_before_it(settings: Any) -> None:
    world = far_back(4, **settings)
    assert await received(world) == [2]
    assert await received(world) == []


async def test_a_receive_gets_what_is_due_behind_much_that_was_due_and_is_settled() -> None:
    world = queue()
    due_ms = world.now_ms + 1_000
    last = 3 * READS_PER_TAKE_MAX
    # One chunk, each message with a row of its own in the schedule; a row stays until nothing of the chunk is left.
    publish(world, *(draft(str(n), due_ms=due_ms + n) for n in range(last + 1)))
    world.pass_time(2_000)
    while (lease := took(world)) is not None:
        seqs = [*receipts_by_seq(lease)]
        world.ack(*(receipt for seq, receipt in receipts_by_seq(lease).items() if seq < last))
        if seqs[-1] == last:
            nack(world, lease)
            break
    world.settle_down()
    world.crash()
    assert await received(world) == [last]


async def test_how_long_a_receive_looks_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(longpoll, "LOOKS_MAX", 1)
    assert await received(far_back(8)) == []


@pytest.mark.parametrize("wait_ms", [0, 60_000])
async def test_a_poll_that_still_looks_is_ended_with_all_others(monkeypatch: pytest.MonkeyPatch, wait_ms: int) -> None:
    """A drain ends all polls once. One that looks for messages elsewhere meanwhile is among them."""
    queue: Any = queue_of(World())
    looks, looked = asyncio.Event(), asyncio.Event()

    async def next_look() -> None:
        looks.set()
        await looked.wait()

    monkeypatch.setattr(type(queue), "is_looking", property(lambda self: not looked.is_set()))
    monkeypatch.setattr(type(queue), "next_look", lambda self: next_look())
    hub = hub_of(asyncio.get_running_loop())
    poll = asyncio.create_task(
        receive_messages(hub, queue, limit=10, wait_ms=wait_ms, visibility_ms=VISIBILITY_MS, receive=never)
    )
    await looks.wait()
    [ready] = hub.polls
    ready.set_result(None)
    looked.set()
    async with asyncio.timeout(5):
        assert json.loads(await poll or b"") == {"messages": []}
    assert not hub.polls and queue.stats().consumers == 0


async def test_a_receive_from_a_stream_goes_on_behind_what_can_never_be_shown() -> None:
    """Each receive failed at it, so that nothing behind it was ever read."""
    world = StreamWorld()
    world.stored(b"1")
    world.stored_by_another_program(b"2", b"3")
    last = world.stored(b"4").base
    hub = hub_of(asyncio.get_running_loop())

    async def read(limit: int, wanted: Any) -> Any:
        answer = await receive_stream(hub, queue_of(world), limit=limit, wait_ms=0, wanted=wanted, receive=never)
        return json.loads(answer or b"")

    answer = await read(10, "earliest")
    assert [message["seq"] for message in answer["messages"]] == [0, last]
    assert (answer["resume"], hub.unshown) == ("gap", 2)
    assert await read(10, {"cursor": answer["cursor"]}) == {**answer, "messages": [], "resume": "complete"}
    first = await read(1, "earliest")
    assert (len(first["messages"]), first["resume"]) == (1, "complete"), "it has not come to it"
