from __future__ import annotations

import asyncio

import pytest

from push.client import (
    ApiError,
    Connected,
    Outgoing,
    Problem,
    Published,
    PublishManyFailed,
    SessionClosed,
    SessionEvent,
    TooLarge,
    Unauthenticated,
    Unavailable,
)
from push.client.frames import Ok, Publish, PublishedItem
from push.client.transports.base import Cut
from tests.unit.push.client.played import PlayedConnection, PlayedServer, eventually, session

pytestmark = pytest.mark.anyio

# Opening


async def test_a_key_function_is_asked_for_every_connection() -> None:
    server, keys = PlayedServer(), iter(["one", "two"])

    async def fetch() -> str:
        return next(keys)

    async with session(server, fetch):
        server.connection.cut()
        await eventually(lambda: len(server.tokens) == 2)
    assert server.tokens == ["one", "two"]


async def test_a_key_function_that_fails_is_asked_again() -> None:
    server, answers = PlayedServer(), iter([OSError("vault is away"), "good"])

    def fetch() -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async with session(server, fetch):
        assert server.tokens == ["good"]


async def test_a_server_that_cannot_be_reached_raises_unavailable_with_the_reason() -> None:
    server = PlayedServer()
    server.refuse = [Cut("connection refused") for _ in range(1000)]
    with pytest.raises(Unavailable, match="connection refused"):
        async with session(server, open_timeout_s=0.05):
            pytest.fail("must not open")


async def test_a_server_that_comes_up_meanwhile_is_found() -> None:
    server = PlayedServer()
    server.refuse = [Cut("connection refused") for _ in range(3)]
    async with session(server) as pushq:
        assert pushq.session == "s1"


async def test_a_refused_key_is_raised_at_once() -> None:
    server = PlayedServer()
    server.refuse = [Cut("unauthenticated", code=4501)]
    with pytest.raises(Unauthenticated):
        async with session(server):
            pytest.fail("must not open")


async def test_a_session_cannot_be_used_before_it_is_open_nor_after_it_was_closed() -> None:
    pushq = session(PlayedServer())
    with pytest.raises(SessionClosed):
        await pushq.publish("q", 1)
    async with pushq:
        pass
    with pytest.raises(SessionClosed):
        await pushq.publish("q", 1)
    with pytest.raises(SessionClosed):
        pushq.subscribe("q")


async def test_the_users_own_error_leaves_the_session_unchanged() -> None:
    with pytest.raises(ZeroDivisionError):
        async with session(PlayedServer()):
            raise ZeroDivisionError


# Publishing


async def test_publishes_of_many_tasks_travel_in_one_frame() -> None:
    server = PlayedServer()
    async with session(server) as pushq:
        results = await asyncio.gather(*(pushq.publish("q", f"{n}") for n in range(10)))
    assert server.published == [[f"{n}" for n in range(10)]]
    assert [result.seq for result in results] == list(range(10))


async def test_every_message_gets_an_id_of_its_own_unless_it_has_one() -> None:
    server = PlayedServer()
    async with session(server) as pushq:
        sent = [pushq._with_id(message) for message in ("a", Outgoing(body="b"), Outgoing(body="c", id="mine"))]
    ids = [message.id for message in sent]
    assert ids[2] == "mine" and len(set(ids)) == 3 and None not in ids


async def test_publish_waits_while_the_window_is_full() -> None:
    server = PlayedServer()
    async with session(server, publish_window_messages=2, close_timeout_s=0.01) as pushq:
        server.answers = False
        tasks = [asyncio.create_task(pushq.publish("q", f"{n}")) for n in range(4)]
        await eventually(lambda: any(isinstance(frame, Publish) for frame in server.frames))
        first = next(frame for frame in server.frames if isinstance(frame, Publish))
        assert len(first.messages) == 2
        server.answers = True
        server.connection.say(Ok(id=first.id, messages=[PublishedItem(id="x", seq=1), PublishedItem(id="y", seq=2)]))
        await asyncio.gather(*tasks)
    assert server.stored == ["2", "3"]


async def test_publish_many_goes_beyond_the_window_in_order() -> None:
    server = PlayedServer()
    async with session(server, publish_window_messages=10) as pushq:
        results = await pushq.publish_many("q", [f"{n}" for n in range(95)])
    assert server.stored == [f"{n}" for n in range(95)]
    assert len(results) == 95 and all(isinstance(result, Published) for result in results)


async def test_publish_many_of_nothing_is_nothing() -> None:
    async with session(PlayedServer()) as pushq:
        assert await pushq.publish_many("q", []) == []


async def test_publish_many_tells_each_messages_result() -> None:
    server = PlayedServer()
    async with session(server) as pushq:
        server.answers = False
        task = asyncio.create_task(pushq.publish_many("q", ["a", "b"]))
        await eventually(lambda: any(isinstance(frame, Publish) for frame in server.frames))
        frame = next(frame for frame in server.frames if isinstance(frame, Publish))
        full = PublishedItem(id="b", error=Problem(code="queue-full", status=507, detail="full"))
        server.connection.say(Ok(id=frame.id, messages=[PublishedItem(id="a", seq=1), full]))
        with pytest.raises(PublishManyFailed, match=r"1 of 2.*full") as caught:
            await task
    assert caught.value.results[0] == Published("a", 1)
    assert isinstance(caught.value.results[1], ApiError)


async def test_an_unconfirmed_publish_survives_a_cut() -> None:
    server = PlayedServer()
    async with session(server) as pushq:
        server.answers = False
        task = asyncio.create_task(pushq.publish("q", "a"))
        await eventually(lambda: any(isinstance(frame, Publish) for frame in server.frames))
        server.answers = True
        server.connection.cut()
        await task
    frames = [frame for frame in server.frames if isinstance(frame, Publish)]
    assert len(frames) == 2 and bytes(frames[0].messages[0]) == bytes(frames[1].messages[0])


async def test_a_cancelled_publish_frees_its_place_and_disturbs_no_other() -> None:
    server = PlayedServer()
    async with session(server) as pushq:
        cancelled = asyncio.create_task(pushq.publish("q", "a"))
        kept = asyncio.create_task(pushq.publish("q", "b"))
        await asyncio.sleep(0)
        cancelled.cancel()
        assert (await kept).id == "b"
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert pushq._link.core.is_idle


async def test_a_message_too_big_for_any_frame_is_refused_here() -> None:
    async with session(PlayedServer()) as pushq:
        with pytest.raises(TooLarge):
            await pushq.publish("q", b"x" * (4 * 1024 * 1024))


async def test_leaving_waits_for_unconfirmed_publishes() -> None:
    server = PlayedServer()
    async with session(server) as pushq:
        task = asyncio.create_task(pushq.publish("q", "a"))
        await asyncio.sleep(0)
    assert server.stored == ["a"]
    await task


async def test_leaving_without_an_answer_ends_the_waiters() -> None:
    server = PlayedServer()
    async with session(server, close_timeout_s=0.01) as pushq:
        server.answers = False
        task = asyncio.create_task(pushq.publish("q", "a"))
        await asyncio.sleep(0)
    with pytest.raises(SessionClosed):
        await task


# Staying alive


async def test_a_silent_server_is_cut_and_called_again() -> None:
    server = PlayedServer()
    server.ping_ms = 10
    async with session(server, silence_grace_s=0.02):
        await eventually(lambda: len(server.connections) >= 2)
        assert server.connections[0].is_aborted and not server.connections[0].is_closed


async def test_a_callback_that_fails_harms_nobody() -> None:
    def fail(event: SessionEvent) -> None:
        raise RuntimeError("the user's mistake")

    async with session(PlayedServer(), on_event=fail) as pushq:
        assert (await pushq.publish("q", "a")).seq == 0


async def test_events_tell_the_connections() -> None:
    server, events = PlayedServer(), list[SessionEvent]()
    async with session(server, on_event=events.append):
        server.connection.cut()
        await eventually(lambda: len(events) == 3)
    assert events[0] == Connected("s1", False) and events[2] == Connected("s1", True)


async def test_no_task_outlives_the_session() -> None:
    before = asyncio.all_tasks()
    server = PlayedServer()
    async with session(server) as pushq:
        await pushq.publish("q", 1)
        pushq.subscribe("q")
    assert asyncio.all_tasks() == before
    assert isinstance(server.connection, PlayedConnection)


async def test_waits_that_were_given_up_leave_nothing_behind() -> None:
    server = PlayedServer()
    async with session(server, publish_window_messages=1, close_timeout_s=0.01) as pushq, pushq.subscribe("q") as idle:
        server.answers = False
        first = asyncio.create_task(pushq.publish("q", "a"))
        for _ in range(20):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(idle.get(), 0.0001)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(pushq.publish("q", "b"), 0.0001)
        assert len(idle._waiters) == 0 and len(pushq._link._room_waiters) == 0
        first.cancel()
