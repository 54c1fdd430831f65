"""How long a publish waits is its sender's word: on a disk that stands still each is answered in its own time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from gateway.commands.exits import Exit
from push.client import ApiError, OutcomeUnknown, Pushq, connect
from tests.support.cli import Cli
from tests.support.server import PushqServer
from tests.support.slow_disk import STALL_SECONDS, slow_disk
from tests.support.ws import Client, create_queue

pytestmark = pytest.mark.anyio


@pytest.fixture
def stalled(server: PushqServer) -> Iterator[PushqServer]:
    """A server each of whose commits takes seconds."""
    create_queue(server, "q")
    with slow_disk(server):
        yield server


async def test_on_a_disk_that_stands_still_each_publish_is_answered_in_its_own_time(stalled: PushqServer) -> None:
    async with (
        httpx2.AsyncClient(base_url=stalled.url, headers=stalled.headers, timeout=20) as http,
        Client(stalled) as client,
    ):

        async def publish(timeout_ms: int) -> tuple[int, str, float]:
            began = time.monotonic()
            headers = {"Pushq-Timeout-Ms": str(timeout_ms)}
            answer = await http.post("/v1/queues/q/messages", json={"messages": [{"body": 1}]}, headers=headers)
            return answer.status_code, answer.json().get("code", ""), time.monotonic() - began

        first = asyncio.create_task(publish(500))
        await asyncio.sleep(0.2)  # the disk has it
        second = asyncio.create_task(publish(500))
        await client.send(type="publish", queue="q", messages=[{"body": 1}], timeout_ms=500, id="third")
        status, code, took = await first
        assert (status, code) == (504, "outcome-unknown") and took < STALL_SECONDS
        status, code, took = await second
        assert (status, code) == (503, "overloaded") and took < STALL_SECONDS
        third = await client.next("error")
        assert (third["id"], third["problem"]["code"]) == ("third", "overloaded")
        status, _, took = await publish(60_000)
        assert status == 201, "who waits for longer is served"


async def test_on_a_disk_that_stands_still_a_caller_of_the_sdk_is_told_in_its_own_time(stalled: PushqServer) -> None:
    async def publish(pushq: Pushq, timeout: float) -> tuple[str, float]:
        began = time.monotonic()
        try:
            await pushq.publish("q", 1, timeout=timeout)
        except (ApiError, OutcomeUnknown) as error:
            return error.code, time.monotonic() - began
        return "stored", time.monotonic() - began

    async with connect(stalled.url, stalled.key) as socket, connect(stalled.url, stalled.key, transport="poll") as http:
        first = asyncio.create_task(publish(socket, 0.5))
        await asyncio.sleep(0.2)  # the disk has it
        second, third = asyncio.create_task(publish(http, 0.5)), asyncio.create_task(publish(socket, 60))
        code, took = await first
        # It is on its way to the disk, unless something else was on its way before it.
        assert code in ("outcome-unknown", "overloaded") and took < STALL_SECONDS
        code, took = await second
        assert code == "overloaded" and took < STALL_SECONDS
        code, _ = await third
        assert code == "stored", "who waits for longer is served"
    cli = Cli(stalled)
    for arguments, stdin in (["1"], ""), (["--lines"], "1\n2\n"):
        began = time.monotonic()
        ran = await asyncio.to_thread(cli.any, "publish", "q", *arguments, "--timeout-ms", "300", stdin=stdin)
        assert ran.code == Exit.UNAVAILABLE and time.monotonic() - began < STALL_SECONDS, ran.err


@pytest.mark.parametrize("stated", ["0", "60001", "-1", "1.5", "soon", ""])
async def test_a_time_that_cannot_be_is_refused_by_name(shared_server: PushqServer, stated: str) -> None:
    create_queue(shared_server, "times")
    headers = {**shared_server.headers, "Pushq-Timeout-Ms": stated}
    url = f"{shared_server.url}/v1/queues/times/messages"
    answer = httpx2.post(url, json={"messages": [{"body": 1}]}, headers=headers)
    assert answer.status_code == 400 and answer.json()["errors"][0]["pointer"] == "/headers/pushq-timeout-ms"


@pytest.mark.parametrize("timeout_ms", [0, 60_001])
@pytest.mark.parametrize("more", [{}, {"key": "k"}])
async def test_a_frame_with_a_time_that_cannot_be_is_refused_by_name(
    shared_server: PushqServer, timeout_ms: int, more: dict[str, str]
) -> None:
    create_queue(shared_server, "times")
    async with Client(shared_server) as client:
        frame = {"type": "publish", "queue": "times", "messages": [{"body": 1, **more}]}
        answer = await client.ask(**frame, timeout_ms=timeout_ms)
        assert answer["problem"]["errors"][0]["pointer"] == "/timeout_ms"
        assert (await client.ask(**frame, timeout_ms=60_000))["type"] == "ok"


async def test_on_a_disk_that_stands_still_a_publish_that_makes_its_queue_is_answered_in_its_own_time(
    tmp_path: Path,
) -> None:
    env = {"PUSHQ_QUEUES__AUTO_CREATE": '[{"pattern": "auto.*"}]'}
    with PushqServer(tmp_path / "data", env=env) as server, slow_disk(server):
        async with (
            httpx2.AsyncClient(base_url=server.url, headers=server.headers, timeout=20) as http,
            Client(server) as client,
        ):
            began = time.monotonic()
            await client.send(type="publish", queue="auto.a", messages=[{"body": 1}], timeout_ms=300, id="socket")
            message = {"messages": [{"body": 1}]}
            answer = await http.post("/v1/queues/auto.a/messages", json=message, headers={"Pushq-Timeout-Ms": "300"})
            refused = await client.next("error")
            assert time.monotonic() - began < STALL_SECONDS
            assert (refused["id"], refused["problem"]["code"]) == ("socket", "unavailable")
            assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
            assert "nothing was accepted" in answer.json()["detail"]
