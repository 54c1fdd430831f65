from __future__ import annotations

import asyncio
import base64
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from push.client import (
    ApiError,
    Connected,
    Disconnected,
    OutcomeUnknown,
    Outgoing,
    Problem,
    Published,
    PublishManyFailed,
    SessionClosed,
    SessionEvent,
    TooLarge,
    Unauthenticated,
    Unavailable,
    connect,
)
from push.client.frames import Ok, Publish, PublishedItem, Refresh
from push.client.model import TRANSPORTS
from push.client.transports.base import Cut
from tests.support.patience import PATIENCE_S
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


async def test_a_key_function_that_does_not_end_is_told_and_asked_again() -> None:
    server, asked, events = PlayedServer(), list[int](), list[SessionEvent]()

    async def fetch() -> str:
        asked.append(1)
        if len(asked) == 2:
            await asyncio.Event().wait()
        return "good"

    async with session(server, fetch, on_event=events.append, open_timeout_s=0.05):
        server.connection.cut()
        await eventually(lambda: len(server.tokens) == 2)
    reasons = [event.reason for event in events if isinstance(event, Disconnected)]
    assert reasons == ["cut by the test", "the key function returned no key within 0.05 s"]


@pytest.mark.parametrize("key", ["secret\n", "", "se cret", "\ud800", b"secret", 5])
async def test_a_key_that_no_request_can_carry_is_refused_and_not_shown(key: Any) -> None:
    server = PlayedServer()
    for given in (lambda: key, key):
        with pytest.raises(Unauthenticated, match="the key cannot be sent") as caught:
            async with session(server, given):
                pytest.fail("must not open")
        assert "cret" not in str(caught.value)
    assert server.tokens == []


async def test_a_newer_key_that_no_request_can_carry_is_not_sent() -> None:
    server, keys = PlayedServer(), iter([_jwt(ends_s=0.001), "se cret", _jwt(ends_s=3600)])
    async with session(server, lambda: next(keys), token_retry_s=0.001) as pushq:
        await eventually(lambda: any(isinstance(frame, Refresh) for frame in server.frames))
        await pushq.publish("q", 1)
    assert len([frame for frame in server.frames if isinstance(frame, Refresh)]) == 1


def _jwt(*, ends_s: float) -> str:
    claims = base64.urlsafe_b64encode(msgspec.json.encode({"exp": time.time() + ends_s})).decode().rstrip("=")
    return f"head.{claims}.signature"


async def test_a_server_that_cannot_be_reached_raises_unavailable_with_the_reason() -> None:
    server = PlayedServer()
    server.refuse = [Cut("connection refused") for _ in range(1000)]
    with pytest.raises(Unavailable, match="connection refused"):
        async with session(server, open_timeout_s=0.05):
            pytest.fail("must not open")


async def test_a_server_that_asks_for_more_time_than_there_is_ends_the_opening_at_once() -> None:
    server, told = PlayedServer(), list[SessionEvent]()
    server.refuse = [_busy(retry_s=600)]
    with pytest.raises(Unavailable, match="the server accepts no new sessions now: no room") as caught:
        async with session(server, on_event=told.append, open_timeout_s=300):
            pytest.fail("must not open")
    assert caught.value.problem is not None
    assert (caught.value.code, caught.value.problem.retry_after_ms) == ("overloaded", 600_000)
    assert told == []  # it is not said that there will be a next attempt


async def test_a_server_that_asks_to_come_back_is_waited_for_longer_than_an_absent_one() -> None:
    server, told = PlayedServer(), list[SessionEvent]()
    server.refuse = [_busy(retry_s=0.02), _busy(retry_s=0.02)]
    async with session(
        server, on_event=told.append, open_timeout_s=0.01, open_patience_s=PATIENCE_S, backoff_base_s=0.0
    ):
        problems = [event.problem for event in told if isinstance(event, Disconnected)]
        assert [problem.code for problem in problems if problem is not None] == ["overloaded"] * 2


def _busy(*, retry_s: float) -> Cut:
    problem = Problem(status=503, code="overloaded", detail="no room", retry_after_ms=round(retry_s * 1000))
    return Cut("no room", retry_s=retry_s, problem=problem)


async def test_a_server_that_comes_up_meanwhile_is_found() -> None:
    server = PlayedServer()
    server.refuse = [Cut("connection refused") for _ in range(3)]
    async with session(server) as pushq:
        assert pushq.session == "s1"


async def test_a_transport_has_one_name_and_its_earlier_ones_are_taken() -> None:
    named = {name: connect("http://played", "k", transport=name)._options.transport for name in TRANSPORTS}
    assert named == {"ws": "ws", "sse": "sse", "poll": "poll", "websocket": "ws", "longpoll": "poll"}
    with pytest.raises(ValueError, match="unknown transport 'pigeon'; use one of ws, sse, poll"):
        connect("http://played", "k", transport="pigeon")  # type: ignore[arg-type]


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
        await pushq.publish_many("q", ["a", Outgoing(body="b"), Outgoing(body="c", id="mine")])
        await pushq.publish("q", "d")
    ids = [fields["id"] for fields in server.messages]
    assert ids[2] == "mine" and len(set(ids)) == 4


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


async def test_the_wait_for_room_is_part_of_a_publishs_time() -> None:
    server = PlayedServer()
    async with session(server, publish_window_messages=1, close_timeout_s=0.01) as pushq:
        server.answers = False
        first = asyncio.create_task(pushq.publish("q", "first"))
        await eventually(lambda: any(isinstance(frame, Publish) for frame in server.frames))
        with pytest.raises(Unavailable, match=r"0\.05 s"):
            await pushq.publish("q", "second", timeout=0.05)
        first.cancel()
    assert [len(frame.messages) for frame in server.frames if isinstance(frame, Publish)] == [1]


@pytest.mark.parametrize("is_many", [False, True])
async def test_a_server_that_does_not_answer_is_waited_for_a_little_longer_than_the_time(is_many: bool) -> None:
    server = PlayedServer()
    async with session(server, publish_grace_s=0.05, close_timeout_s=0.01) as pushq:
        server.answers = False
        if is_many:
            with pytest.raises(PublishManyFailed) as failed:
                await pushq.publish_many("q", ["a", "b"], timeout=timedelta(milliseconds=50))
            assert all(isinstance(result, OutcomeUnknown) for result in failed.value.results)
        else:
            with pytest.raises(OutcomeUnknown):
                await pushq.publish("q", "a", timeout=0.05)
    frames = [frame for frame in server.frames if isinstance(frame, Publish)]
    assert len(frames) == 1 and frames[0].timeout_ms is not None and 0 < frames[0].timeout_ms <= 50


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


async def test_publishes_that_are_cancelled_while_the_server_is_away_make_room_for_others() -> None:
    server = PlayedServer()
    async with session(server, publish_window_messages=2) as pushq:
        server.refuse = [Cut("away") for _ in range(1000)]
        server.connection.cut()
        await eventually(lambda: len(server.tokens) > 1)
        cancelled = [asyncio.create_task(pushq.publish("q", "a")) for _ in range(2)]
        waiting = asyncio.create_task(pushq.publish("q", "b"))
        await eventually(lambda: pushq._link._room_waiters)
        for task in cancelled:
            task.cancel()
        await asyncio.gather(*cancelled, return_exceptions=True)
        server.refuse.clear()
        async with asyncio.timeout(PATIENCE_S):
            assert (await waiting).id == "b"


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


async def test_leaving_during_a_reconnect_waits_for_unconfirmed_publishes_too() -> None:
    server = PlayedServer()
    async with session(server) as pushq:
        server.refuse = [Cut("away") for _ in range(3)]
        server.connection.cut()
        await eventually(lambda: len(server.refuse) < 3)
        task = asyncio.create_task(pushq.publish("q", "a"))
        await asyncio.sleep(0)
    assert (await task).id == "a" and server.stored == ["a"]


async def test_leaving_a_server_that_stays_away_waits_no_longer_than_it_may() -> None:
    server = PlayedServer()
    async with session(server, close_timeout_s=0.01) as pushq:
        server.refuse = [Cut("away") for _ in range(1000)]
        server.connection.cut()
        await eventually(lambda: len(server.refuse) < 1000)
        task = asyncio.create_task(pushq.publish("q", "a"))
        await asyncio.sleep(0)
    with pytest.raises(SessionClosed):
        await task


async def test_leaving_without_an_answer_ends_the_waiters() -> None:
    server = PlayedServer()
    async with session(server, close_timeout_s=0.01) as pushq:
        server.answers = False
        task = asyncio.create_task(pushq.publish("q", "a"))
        await asyncio.sleep(0)
    with pytest.raises(SessionClosed):
        await task


# Ids and numbers


async def test_every_client_has_a_producers_name_of_its_own() -> None:
    async with session(server := PlayedServer()) as one, session(PlayedServer()) as two:
        await one.publish("q", "a")
        assert server.messages[0]["producer"] == one.producer != two.producer


async def test_a_program_goes_on_with_its_name_and_numbers() -> None:
    server = PlayedServer()
    server.sequencing = "producer"
    options = {"producer": "till-7", "first_number": {"q": 42}}
    async with session(server, options=options) as pushq:
        await pushq.publish_many("q", ["a", "b"])
        await pushq.publish("other", "c")
        assert pushq.next_numbers == {"q": 44, "other": 2}
    assert [(sent["producer"], sent["producer_seq"]) for sent in server.messages] == [
        ("till-7", 42),
        ("till-7", 43),
        ("till-7", 1),
    ]


async def test_once_a_queue_has_said_how_it_is_sequenced_a_plain_one_gets_plain_messages() -> None:
    server = PlayedServer()
    server.sequencing, server.dedupe = "arrival", "none"
    async with session(server, options={"publish_ids": "auto"}) as pushq:
        await pushq.publish("q", "a")
        await pushq.publish("q", "b")
        await pushq.publish_many("q", ["c", Outgoing(body="d"), Outgoing(body="e", id="mine")])
    assert set(server.messages[0]) == {"body", "id", "producer", "producer_seq", "timestamp"}
    assert server.messages[1:] == [{"body": "b"}, {"body": "c"}, {"body": "d"}, {"body": "e", "id": "mine"}]


async def test_a_queue_that_drops_repeats_gets_ids_for_good() -> None:
    server = PlayedServer()
    server.sequencing, server.dedupe = "arrival", "id"
    async with session(server, options={"publish_ids": "auto"}) as pushq:
        await pushq.publish("q", "a")
        await pushq.publish("q", "b")
    assert set(server.messages[1]) == {"body", "id"}


async def test_ids_may_be_left_out_altogether() -> None:
    server = PlayedServer()
    async with session(server, options={"publish_ids": False}) as pushq:
        await pushq.publish("q", "a")
        await pushq.publish("q", "b", id="mine")
    assert [sent.get("id") for sent in server.messages] == [None, "mine"]


@pytest.mark.parametrize("options", [{"producer": ""}, {"producer": "ü" * 129}, {"first_number": 0}])
def test_a_name_or_number_that_no_server_takes_is_the_callers_error(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"1 to 256 bytes|start at 1"):
        connect("http://nowhere", "k", **options)


async def test_a_message_says_when_it_is_due_and_when_it_ends() -> None:
    server = PlayedServer()
    async with session(server) as pushq:
        noon = datetime(2026, 11, 21, 12, tzinfo=UTC)
        await pushq.publish("q", "a", deliver_at=noon, ttl=timedelta(minutes=1), priority=2)
        await pushq.publish_many("q", [Outgoing(body="b", deliver_at=noon), Outgoing(body="c", delay_ms=5)])
    found = [
        {name: sent.get(name) for name in ("deliver_at", "ttl_ms", "priority", "delay_ms")} for sent in server.messages
    ]
    at = "2026-11-21T12:00:00.000Z"
    assert found == [
        {"deliver_at": at, "ttl_ms": 60_000, "priority": 2, "delay_ms": None},
        {"deliver_at": at, "ttl_ms": None, "priority": None, "delay_ms": None},
        {"deliver_at": None, "ttl_ms": None, "priority": None, "delay_ms": 5},
    ]


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


async def test_no_task_outlives_a_session_whose_closing_was_cancelled() -> None:
    before = asyncio.all_tasks()
    server = PlayedServer()
    pushq = session(server, close_timeout_s=2 * PATIENCE_S)
    await pushq.open()
    server.answers = False
    waiting = asyncio.create_task(pushq.publish("q", "a"))
    await asyncio.sleep(0)
    closing = asyncio.create_task(pushq.close())
    await eventually(lambda: pushq._link._idle_waiters)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    with pytest.raises(SessionClosed):
        await waiting
    assert asyncio.all_tasks() == before and server.connection.is_aborted


@pytest.mark.parametrize("name", ["pushq connection", "pushq sender"])
async def test_a_session_whose_tasks_were_cancelled_is_closed(name: str) -> None:
    async with asyncio.timeout(PATIENCE_S), session(PlayedServer(), close_timeout_s=0.01) as pushq:
        for task in asyncio.all_tasks():
            if task.get_name() == name:
                task.cancel()
        with pytest.raises(SessionClosed, match="its tasks were cancelled"):
            await pushq.publish("q", 1)


def test_a_session_is_used_in_the_event_loop_that_opened_it() -> None:
    pushq = session(PlayedServer())
    asyncio.run(pushq.open())
    with pytest.raises(RuntimeError, match="another event loop"):
        asyncio.run(pushq.publish("q", 1))
    with pytest.raises(RuntimeError, match="another event loop"):
        asyncio.run(pushq.close())


async def test_a_thread_with_a_loop_of_its_own_is_told_so() -> None:
    async with session(PlayedServer()) as pushq, pushq.subscribe("q") as messages:
        server_side = pushq._link.core.is_idle

        def elsewhere() -> None:
            for call in (lambda: pushq.publish("q", 1), messages.get, lambda: pushq.request("q", 1)):
                with pytest.raises(RuntimeError, match="another event loop"):
                    asyncio.run(call())

        await asyncio.to_thread(elsewhere)
        assert pushq._link.core.is_idle == server_side
        assert (await pushq.publish("q", "here")).id == "here"


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
