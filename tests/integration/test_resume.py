"""Sessions that are cut, drained or killed, and what becomes of the messages they held."""

from __future__ import annotations

from typing import Any

import anyio
import httpx2
import pytest

from tests.conftest import StartServer
from tests.support.server import PushqServer
from tests.support.ws import Client, create_queue

pytestmark = pytest.mark.anyio


async def test_cut_session_keeps_its_leases_and_goes_on(server: PushqServer) -> None:
    create_queue(server, "q")
    async with Client(server) as client:
        await client.publish("q", *range(4))
        await client.subscribe("q", credit=2)
        held = await client.messages(2)
        await client.cut()
    async with Client(server, resume=client.session) as again, Client(server) as other:
        assert again.connected["resumed"] and again.session == client.session
        await other.subscribe("q", credit=10)
        assert [m["body"] for m in await other.messages(2)] == [2, 3]
        await again.subscribe("q", credit=2)
        assert await again.is_quiet(), "its credit is used up by what it still holds"
        answer = await again.ask(type="ack", queue="q", receipts=[m["receipt"] for m in held])
        assert [row["ok"] for row in answer["results"]] == [True, True]
        assert await other.is_quiet(), "nothing was redelivered"


def make(server: PushqServer, kind: str, **config: Any) -> dict[str, str]:
    """A work queue, or a group of a stream, by the name `q`; what a subscription says of it."""
    if kind == "work":
        create_queue(server, "q", **config)
        return {}
    create_queue(server, "q", kind="stream", **config)
    wanted = {"position": "earliest", "mode": kind}
    assert httpx2.put(f"{server.url}/v1/queues/q/groups/g", json=wanted, headers=server.headers).status_code == 201
    return {"group": "g"}


@pytest.mark.parametrize("kind", ["work", "leases"])
async def test_a_session_that_comes_back_is_told_what_it_lost_meanwhile(server: PushqServer, kind: str) -> None:
    of = make(server, kind, visibility_timeout_ms=1000)
    async with Client(server) as client:
        await client.subscribe("q", credit=3, **of)
        async with Client(server) as producer:
            await producer.publish("q", *range(3))
        receipts = [m["receipt"] for m in await client.messages(3)]
        await client.cut()
    async with Client(server) as other:
        answer = httpx2.post(f"{server.url}/v1/queues/q/ack", json={"receipts": receipts[:1]}, headers=server.headers)
        assert [row["ok"] for row in answer.json()["results"]] == [True]
        await other.subscribe("q", credit=10, **of)
        assert [m["attempt"] for m in await other.messages(2)] == [2, 2]
        async with Client(server, resume=client.session) as again:
            assert again.connected["resumed"]
            subscribed = await again.subscribe("q", credit=3, **of)
            lost = await again.next("lost")
            assert (lost["sub"], sorted(lost["receipts"])) == (subscribed["sub"], sorted(receipts[1:]))
            assert await again.is_quiet()


@pytest.mark.parametrize("kind", ["work", "leases", "offsets"])
async def test_what_a_cut_session_was_sent_and_never_read_comes_again(server: PushqServer, kind: str) -> None:
    of = make(server, kind, visibility_timeout_ms=1500)
    async with Client(server) as client, Client(server) as producer:
        await client.subscribe("q", credit=100, **of)
        await producer.publish("q", *range(5))
        await client.next("deliver")  # to the test's side of the socket, and no further
        await client.cut()
    came: list[int] = []
    async with Client(server, resume=client.session) as again:
        assert again.connected["resumed"]
        await again.subscribe("q", credit=100, **of)
        await again.publish("q", *range(5, 10))
        while len(came) < 10:
            messages = (await again.next("deliver"))["messages"]
            came += [m["body"] for m in messages]
            answer = await again.ask(type="ack", queue="q", receipts=[m["receipt"] for m in messages])
            assert all(row["ok"] for row in answer["results"])
        assert await again.is_quiet()
    assert sorted(came) == list(range(10))
    if kind == "offsets":
        assert came == list(range(10)), "an ack of a newer one would have settled the first five"


async def test_of_a_group_with_offsets_newer_messages_wait_until_the_client_shows_what_it_has(
    server: PushqServer,
) -> None:
    of = make(server, "offsets")
    async with Client(server) as client:
        await client.publish("q", *range(3))
        await client.subscribe("q", credit=100, **of)
        held = [m["receipt"] for m in await client.messages(3)]
        await client.cut()
    async with Client(server, resume=client.session) as again:
        await again.subscribe("q", credit=100, **of)
        await again.publish("q", "newer")
        assert await again.is_quiet()
        answer = await again.ask(type="extend", queue="q", receipts=held, visibility_timeout_ms=30_000)
        assert all(row["ok"] for row in answer["results"]), "receipts stay good"
        assert [m["body"] for m in await again.messages(1)] == ["newer"]
        answer = await again.ask(type="ack", queue="q", receipts=held)
        assert all(row["ok"] for row in answer["results"])


async def test_of_a_group_with_offsets_what_the_client_does_not_show_in_time_is_lost_and_comes_again(
    start_server: StartServer,
) -> None:
    server = start_server(env={"PUSHQ_RESUME_MS": "700"})
    of = make(server, "offsets")
    async with Client(server) as client:
        await client.publish("q", *range(4))
        await client.subscribe("q", credit=100, **of)
        held = [m["receipt"] for m in await client.messages(4)]
        await client.cut()
    async with Client(server, resume=client.session) as again:
        await again.subscribe("q", credit=100, **of)
        await again.publish("q", "newer")
        answer = await again.ask(type="ack", queue="q", receipts=held[1:2])
        assert answer["results"][0]["ok"]
        assert sorted((await again.next("lost"))["receipts"]) == sorted(held[2:])
        assert [m["body"] for m in await again.messages(3)] == [2, 3, "newer"]


async def test_cut_session_that_stays_away_gives_its_messages_to_others(start_server) -> None:
    server = start_server(env={"PUSHQ_RESUME_MS": "500"})
    create_queue(server, "q")
    async with Client(server) as client:
        await client.publish("q", "once")
        await client.subscribe("q", credit=1)
        await client.messages(1)
        await client.cut()
    async with Client(server) as other:
        await other.subscribe("q", credit=1)
        assert [(m["body"], m["attempt"]) for m in await other.messages(1)] == [("once", 2)]


async def test_closed_session_returns_its_messages_at_once(server: PushqServer) -> None:
    create_queue(server, "q")
    async with Client(server) as client:
        await client.publish("q", "once")
        await client.subscribe("q", credit=1)
        await client.messages(1)
    async with Client(server) as other:
        await other.subscribe("q", credit=1)
        assert [m["attempt"] for m in await other.messages(1, seconds=1)] == [2]


async def test_drained_server_hands_sessions_and_leases_to_its_next_start(server: PushqServer) -> None:
    create_queue(server, "q")
    async with Client(server) as client:
        await client.publish("q", *range(3))
        await client.subscribe("q", credit=2)
        held = await client.messages(2)
        server.terminate()
        bye = await client.next("bye")
        assert bye["code"] == 4000 and bye["retry_ms"] > 0
        stopped = await anyio.to_thread.run_sync(server.wait)
        assert stopped.exit_code == 0 and stopped.seconds < 5
    await anyio.to_thread.run_sync(server.start)
    async with Client(server) as other, Client(server, resume=client.session) as again:
        assert again.connected["resumed"]
        await other.subscribe("q", credit=10)
        assert [(m["body"], m["attempt"]) for m in await other.messages(1)] == [(2, 1)], "what was not sent was no try"
        await again.subscribe("q", credit=2)
        assert await again.is_quiet() and await other.is_quiet(), "nothing is redelivered because of the restart"
        answer = await again.ask(type="ack", queue="q", receipts=[m["receipt"] for m in held])
        assert [row["ok"] for row in answer["results"]] == [True, True]


async def test_at_a_drain_a_client_that_does_not_read_holds_nothing_up_and_costs_others_no_attempt(
    start_server: StartServer,
) -> None:
    """It has credit for everything, and its outbox room for a part: of the rest no byte left, and nothing was a try."""
    server = start_server(env={"PUSHQ_RESUME_MS": "500"})
    create_queue(server, "q")
    count, body = 300, "x" * 60_000
    async with Client(server) as deaf, Client(server) as producer:
        await deaf.subscribe("q", credit=count)
        deaf.socket.transport.pause_reading()
        for start in range(0, count, 20):
            await producer.publish("q", *[{"number": number, "body": body} for number in range(start, start + 20)])
        server.terminate()
        stopped = await anyio.to_thread.run_sync(server.wait)
        assert stopped.exit_code == 0 and stopped.seconds < 10
        await deaf.cut()
    await anyio.to_thread.run_sync(server.start)
    attempts: dict[int, int] = {}
    async with Client(server) as other:
        await other.subscribe("q", credit=50)
        while len(attempts) < count:
            messages = (await other.next("deliver"))["messages"]
            for message in messages:
                number = message["body"]["number"]
                assert number not in attempts, "each comes once"
                attempts[number] = message["attempt"]
            await other.send(type="ack", queue="q", receipts=[message["receipt"] for message in messages])
    tried = [number for number, attempt in attempts.items() if attempt > 1]
    assert 0 < len(tried) < count // 2, "what left for its socket, and no more"
    assert sorted(tried) == list(range(len(tried)))


async def test_killed_server_redelivers_what_was_in_flight_and_old_receipts_still_ack(server: PushqServer) -> None:
    create_queue(server, "q")
    async with Client(server) as client:
        await client.publish("q", "a", "b")
        await client.subscribe("q", credit=2)
        first, second = await client.messages(2)
        server.kill()
    await anyio.to_thread.run_sync(server.start)
    async with Client(server) as again:
        answer = await again.ask(type="ack", queue="q", receipts=[first["receipt"]])
        assert answer["results"][0]["ok"], "nobody else holds it, so the receipt of before the crash still counts"
        await again.subscribe("q", credit=2)
        assert [m["body"] for m in await again.messages(1)] == ["b"]
        answer = await again.ask(type="ack", queue="q", receipts=[second["receipt"]])
        assert answer["results"] == [{"receipt": second["receipt"], "ok": False, "error": "stale-receipt"}]


async def test_session_of_another_key_cannot_be_resumed(server: PushqServer) -> None:
    create_queue(server, "q")
    async with Client(server) as client:
        await client.subscribe("q", credit=1)
        await client.cut()
    async with Client(server, resume="not-" + client.session) as stranger:
        assert not stranger.connected["resumed"] and stranger.session != client.session


async def test_big_messages_use_the_whole_credit(server: PushqServer) -> None:
    create_queue(server, "q")
    async with Client(server) as client:
        for _ in range(12):
            await client.publish("q", "x" * 200_000)
        await client.subscribe("q", credit=10)
        assert len(await client.messages(10)) == 10
        assert await client.is_quiet()


async def test_visibility_time_out_of_zero_delivers_and_gives_back(server: PushqServer) -> None:
    create_queue(server, "q", visibility_timeout_ms=0)
    async with Client(server) as client:
        await client.publish("q", "again and again")
        await client.subscribe("q", credit=1)
        assert [m["attempt"] for m in await client.messages(3)] == [1, 2, 3]


async def test_stream_reader_is_told_what_a_purge_took_from_it(server: PushqServer) -> None:
    create_queue(server, "s", kind="stream")
    async with Client(server) as client:
        await client.publish("s", *range(10))
        subscribed = await client.subscribe("s", **{"from": "earliest"}, credit=4)
        assert [m["body"] for m in await client.messages(4)] == [0, 1, 2, 3]
        purged = httpx2.post(f"{server.url}/v1/queues/s/purge", json={"confirm": "s"}, headers=server.headers)
        assert purged.status_code == 202
        await client.publish("s", "after")
        await client.ask(type="credit", sub=subscribed["sub"], n=4)
        gap = await client.next("gap")
        assert gap["from"] == 4 and gap["to"] >= 9
        assert [m["body"] for m in await client.messages(1)] == ["after"]
