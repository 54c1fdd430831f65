"""A queue's line is full: what comes is refused soon, its sender is told which request it was, and acks go on."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from websockets.asyncio.client import connect

from backend_store.node.limits import INBOX_MESSAGES_MAX
from tests.support.server import PushqServer
from tests.support.ws import Client, create_queue

FRAMES = 60
PER_FRAME = 1000


@pytest.mark.anyio
async def test_each_publish_of_a_flood_is_stored_or_refused_by_its_id(server: PushqServer) -> None:
    create_queue(server, "q")
    create_queue(server, "other")
    messages = [{"body": n} for n in range(PER_FRAME)]
    frames = [json.dumps({"type": "publish", "queue": "q", "id": n, "messages": messages}) for n in range(FRAMES)]
    async with Client(server) as quiet, connect(server.ws_url, max_size=None) as flood:
        await quiet.ask(type="subscribe", queue="other", credit=1)
        await quiet.ask(type="publish", queue="other", messages=[{"body": 1}])
        (message,) = (await quiet.next("deliver"))["messages"]
        await flood.send(json.dumps({"type": "connect", "token": server.key}))
        assert FRAMES * PER_FRAME > 2 * INBOX_MESSAGES_MAX
        sending = asyncio.create_task(send_all(flood, frames))
        answers = await answered(flood, FRAMES)
        await sending
        acked = await quiet.ask(type="ack", queue="other", receipts=[message["receipt"]])
        assert acked["results"][0]["ok"]
    stored = [n for n, answer in answers.items() if answer["type"] == "ok"]
    refused = [answer["problem"] for answer in answers.values() if answer["type"] == "error"]
    assert sorted(answers) == list(range(FRAMES)) and stored
    assert all(problem["code"] == "overloaded" and problem["retry_after_ms"] > 0 for problem in refused)
    async with Client(server) as client:
        await client.ask(type="subscribe", queue="q", credit=10_000)
        seen = 0
        while seen < len(stored) * PER_FRAME:
            delivered = await client.next("deliver")
            seen += len(delivered["messages"])
            await client.send(type="ack", queue="q", receipts=[m["receipt"] for m in delivered["messages"]])
        assert seen == len(stored) * PER_FRAME


async def send_all(socket: Any, frames: list[str]) -> None:
    for frame in frames:
        await socket.send(frame)


async def answered(socket: Any, count: int) -> dict[int, dict[str, Any]]:
    answers: dict[int, dict[str, Any]] = {}
    async with asyncio.timeout(30):
        while len(answers) < count:
            said = json.loads(await socket.recv())
            for frame in said if isinstance(said, list) else [said]:
                if frame["type"] in ("ok", "error"):
                    answers[frame["id"]] = frame
    return answers
