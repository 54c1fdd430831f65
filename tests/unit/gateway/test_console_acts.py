"""What people do on pages, over the application in this process: forms, pages of tables, and what they are refused."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from backend_store.client import Store
from gateway.app import Application, create_app
from gateway.settings import Settings
from tests.unit.gateway.conftest import Clock

pytestmark = pytest.mark.anyio

URL = "http://test"


class Person:
    """Signed in to the console, with the same key at hand for the API."""

    def __init__(self, client: httpx2.AsyncClient, key: str) -> None:
        self.client, self._bearer = client, {"Authorization": f"Bearer {key}"}

    async def api(self, method: str, path: str, body: Any = None) -> Any:
        answer = await self.client.request(method, path, json=body, headers=self._bearer)
        assert answer.status_code < 300, answer.text
        return answer.json() if answer.content else None

    async def look(self, path: str) -> str:
        page = await self.client.get(path)
        assert page.status_code == 200, page.text
        return html.unescape(page.text)

    async def act(self, name: str, back: str, **fields: str) -> str:
        """What the next page says of it."""
        token = re.search(r'name="form_token" value="([^"]+)"', await self.look(back))
        assert token is not None
        form = {**fields, "form_token": token[1], "back": back}
        answer = await self.client.post(f"/console/do/{name}", data=form)
        assert answer.status_code == 303, answer.text
        said = re.search(r'class="notice [a-z]+" role="status">(.*?)</p>', await self.look(answer.headers["location"]))
        return said[1] if said is not None else ""


@pytest.fixture
async def app(store: Store, clock: Clock) -> AsyncIterator[Application]:
    app = create_app(store, Settings(), clock_ms=clock)
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


async def test_dead_letters_beyond_the_first_page_are_on_the_next(person: Person) -> None:
    await person.api("PUT", "/v1/queues/orders", {"max_attempts": 1})
    messages = [{"id": f"m{number:03}", "body": number} for number in range(120)]
    await person.api("POST", "/v1/queues/orders/messages", {"messages": messages})
    while leased := (await person.api("POST", "/v1/queues/orders/receive", {"max": 100}))["messages"]:
        await person.api("POST", "/v1/queues/orders/nack", {"receipts": [message["receipt"] for message in leased]})
    seen, address = [], "/console/queues/orders/dead"
    for _ in range(3):
        page = await person.look(address)
        assert "<strong>max_attempts</strong> 120" in page, "groups are of all"
        seen += re.findall(r"message\?id=(m\d+)", page)
        following = re.search(r'<a rel="next" href="([^"]+)"', page)
        address = following[1] if following is not None else ""
    assert not address and seen == [message["id"] for message in messages]
