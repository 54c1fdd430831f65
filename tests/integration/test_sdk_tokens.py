"""The Python SDK with tokens that end while it works: replaced in time, over each transport."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from push.client import Disconnected, Unauthenticated, connect
from tests.support.issuers import SECRET, claims, issuers_env, with_secret
from tests.support.server import PushqServer

pytestmark = pytest.mark.anyio

ISSUER = "https://id.example"
LIFE_S = 2


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PushqServer]:
    env = issuers_env({"issuer": ISSUER, "tenant": "default", "secret": SECRET}, leeway_s=0)
    with PushqServer(tmp_path_factory.mktemp("tokens") / "data", env=env) as running:
        for name in ("ws", "sse", "poll"):
            httpx2.put(f"{running.url}/v1/queues/{name}", headers=running.headers)
        yield running


class Tokens:
    """A function that gives tokens of a few seconds, and counts."""

    def __init__(self) -> None:
        self.asked = 0

    async def __call__(self) -> str:
        self.asked += 1
        return with_secret(claims(ISSUER, "admin", lives_s=LIFE_S, jti=str(self.asked)))


@pytest.mark.parametrize("transport", ["ws", "sse", "poll"])
async def test_a_client_outlives_its_tokens(server: PushqServer, transport: Any) -> None:
    tokens, events = Tokens(), []
    ends = time.monotonic() + 2.5 * LIFE_S
    async with connect(server.url, token=tokens, transport=transport, on_event=events.append) as pushq:
        came = aiter(pushq.subscribe(transport, credit=10))
        number = 0
        while time.monotonic() < ends:
            await pushq.publish(transport, number)
            message = await asyncio.wait_for(anext(came), 10)
            # What was on its way as a stream was opened anew with a newer token comes again.
            assert message.body == number and message.attempt <= (1 if transport == "ws" else 2)
            await message.ack()
            number += 1
            await asyncio.sleep(0.1)
    assert tokens.asked >= 4 and number >= 10
    if transport == "ws":
        assert not [event for event in events if isinstance(event, Disconnected)]


async def test_a_client_without_newer_tokens_is_told_so(server: PushqServer) -> None:
    only = with_secret(claims(ISSUER, "admin", lives_s=-1))
    with pytest.raises(Unauthenticated):
        async with connect(server.url, token=only, transport="poll"):
            raise AssertionError("it was let in")


def test_a_key_and_a_token_are_one_too_many() -> None:
    with pytest.raises(ValueError, match="not both"):
        connect("http://127.0.0.1:1", "pushq_a_b", token="x")
