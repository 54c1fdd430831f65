"""A store in memory for the gateway's unit tests, and somebody who uses the application over it."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from backend_store.client import Store
from backend_store.node.node import Node
from backend_store.storage.memory import MemoryEngine
from gateway.app import Application, create_app
from gateway.config.settings import Queues, Settings


class Clock:
    """Milliseconds that a test moves by hand."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def store(clock: Clock, anyio_backend: object) -> AsyncIterator[Store]:
    node = Node(MemoryEngine(), directory=None, clock_ms=clock)
    await node.start()
    yield Store(node)
    await node.close()


URL = "http://test"


class Person:
    """Signed in to the console, with the same key at hand for the API."""

    def __init__(self, client: httpx2.AsyncClient, key: str) -> None:
        self.client, self.bearer = client, {"Authorization": f"Bearer {key}"}

    async def api(self, method: str, path: str, body: Any = None) -> Any:
        answer = await self.client.request(method, path, json=body, headers=self.bearer)
        assert answer.status_code < 300, answer.text
        return answer.json() if answer.content else None

    async def refused(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, str, str]:
        """Status, code and detail."""
        answer = await self.client.request(method, path, json=body, headers=self.bearer | headers)
        told = answer.json()
        return answer.status_code, told["code"], told["detail"]

    async def look(self, path: str) -> str:
        page = await self.client.get(path)
        assert page.status_code == 200, page.text
        return html.unescape(page.text)

    async def act(self, name: str, back: str, /, **fields: str) -> str:
        """What the next page says of it."""
        answer = await self.send(name, back, **fields)
        page = await self.look(answer.headers["location"]) if answer.status_code == 303 else html.unescape(answer.text)
        said = re.search(r'class="notice [a-z]+" role="status">(.*?)</p>', page)
        return said[1] if said is not None else ""

    async def send(self, name: str, back: str, /, **fields: str) -> httpx2.Response:
        """A form of a page, as a browser sends it."""
        token = re.search(r'name="form_token" value="([^"]+)"', await self.look(back))
        assert token is not None
        return await self.client.post(f"/console/do/{name}", data={**fields, "form_token": token[1], "back": back})


@pytest.fixture
async def app(store: Store, clock: Clock) -> AsyncIterator[Application]:
    app = create_app(store, Settings(queues=Queues(allow_delete_over_http=True)), clock_ms=clock)
    yield app
    await app.gateway.hub.close()


@pytest.fixture
async def person(app: Application) -> AsyncIterator[Person]:
    """An admin."""
    made = await app.gateway.keyring.create(name="k", tenant="default", scopes=("admin", "operator"))
    transport = httpx2.ASGITransport(app, raise_app_exceptions=True)
    async with httpx2.AsyncClient(transport=transport, base_url=URL, headers={"Origin": URL}) as client:
        assert (await client.post("/console/login", data={"credential": made.token})).status_code == 303
        yield Person(client, made.token)
