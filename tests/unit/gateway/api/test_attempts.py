"""A message's attempts, as peek and the console's page show them: how those before ended, and who has it now."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from gateway.app import Application
from tests.unit.gateway.conftest import URL, Clock, Person

pytestmark = pytest.mark.anyio

QUEUE = "/v1/queues/orders"


async def received(person: Person) -> dict[str, Any]:
    (message,) = (await person.api("POST", f"{QUEUE}/receive", {}))["messages"]
    return dict(message)


async def peeked(person: Person, state: str, headers: dict[str, str] | None = None) -> dict[str, Any]:
    query = {"id": "one", "state": state}
    answer = await person.client.get(f"{QUEUE}/messages", params=query, headers=headers or person.bearer)
    (item,) = answer.json()["items"]
    return dict(item)


@pytest.fixture(autouse=True)
async def waiting(person: Person) -> None:
    await person.api("PUT", QUEUE, {"max_attempts": 3, "encrypted": False})
    await person.api("POST", f"{QUEUE}/messages", {"messages": [{"body": 1, "id": "one"}]})


async def test_what_came_back_says_when_and_why_each_attempt_ended(person: Person, clock: Clock) -> None:
    assert "history" not in await peeked(person, "ready")
    receipt = (await received(person))["receipt"]
    await person.api("POST", f"{QUEUE}/nack", {"receipts": [receipt], "reason": "no such customer"})
    item = await peeked(person, "ready")
    assert item["attempt"] == 1 and "lease" not in item
    (ended,) = item["history"]
    assert (ended["attempt"], ended["outcome"], ended["reason"]) == (1, "nacked", "no such customer")
    page = await person.look("/console/queues/orders/message?id=one")
    assert "nacked" in page and "no such customer" in page


async def test_who_has_a_message_is_told_to_administrators(app: Application, person: Person) -> None:
    await received(person)
    lease = (await peeked(person, "in_flight"))["lease"]
    assert lease["expires_at"] is not None
    consumer = lease["consumer"]
    assert (consumer["name"], consumer["transport"], consumer["connection"]) == ("k", "poll", None)
    other = await app.gateway.keyring.create(name="w", tenant="default", scopes=("consume:*",))
    seen = (await peeked(person, "in_flight", {"Authorization": f"Bearer {other.token}"}))["lease"]
    assert seen == lease | {"consumer": None}
    # The page finds it in the state that it is in by now, and names who has it.
    page = await person.look("/console/queues/orders/message?id=one&state=ready")
    assert "k over a receive" in page and "in flight" in page
    transport = httpx2.ASGITransport(app, raise_app_exceptions=True)
    async with httpx2.AsyncClient(transport=transport, base_url=URL, headers={"Origin": URL}) as client:
        assert (await client.post("/console/login", data={"credential": other.token})).status_code == 303
        page = (await client.get("/console/queues/orders/message?id=one")).text
        assert "k over a receive" not in page and "not known here" in page


async def test_what_was_acked_is_no_message_any_more(person: Person) -> None:
    receipt = (await received(person))["receipt"]
    await person.api("POST", f"{QUEUE}/ack", {"receipts": [receipt]})
    page = await person.client.get("/console/queues/orders/message", params={"id": "one"})
    assert page.status_code == 404 and "it was acknowledged" in page.text
