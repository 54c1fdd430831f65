"""Rows of usage and audit that do not read: `/v1/usage` and `/v1/audit` answer without them, and say how many."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx2
import msgspec
import pytest

from backend_store.client import QueueTotal
from backend_store.client.embedded import EmbeddedStore
from backend_store.service.operations import Partly, Totals, _totals
from backend_store.storage.engine import Batch, Table
from gateway.app import create_app
from gateway.config.settings import Settings
from tests.support.queues import draft
from tests.support.stores import made, opened, published
from tests.support.usage import audit_row
from throttling.limiter import MemoryLimiter

pytestmark = pytest.mark.anyio

BROKEN = b"\0" * 40


@pytest.fixture
async def store() -> AsyncIterator[EmbeddedStore]:
    store = await opened()
    yield store
    await store.close()


@pytest.fixture
async def http(store: EmbeddedStore) -> AsyncIterator[httpx2.AsyncClient]:
    app = create_app(store, Settings(), limiter=MemoryLimiter(), clock_ms=store.node.clock_ms)
    key = await app.gateway.keyring.create(name="k", tenant="default", scopes=("admin",))
    transport = httpx2.ASGITransport(app, raise_app_exceptions=True)
    headers = {"Authorization": f"Bearer {key.token}"}
    async with httpx2.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client:
        yield client
    await app.gateway.hub.close()


async def break_rows(store: EmbeddedStore, start: bytes, end: bytes, count: int) -> None:
    batch = Batch()
    for key, _ in store.node.engine.scan(Table.USAGE, start, end, count):
        batch.put(Table.USAGE, key, BROKEN)
    await store.ledger._write(batch)


async def test_usage_is_told_without_days_and_ranges_that_do_not_read(
    store: EmbeddedStore, http: httpx2.AsyncClient
) -> None:
    for name in ("a", "b", "c", "d"):
        await published(await made(store, name), draft("1"))
    await store.ledger.cut()
    await store.ledger.taken(store.ledger.waiting()[:2], kept_days=400)  # two are a day's totals now, two are ranges
    whole = (await http.get("/v1/usage")).json()
    assert [item["published"] for item in whole["items"]] == [1, 1, 1, 1] and whole["unreadable"] == 0
    await break_rows(store, b"d", b"e", 1)
    await break_rows(store, b"l", b"m", 1)
    answer = await http.get("/v1/usage")
    assert answer.status_code == 200 and answer.json()["unreadable"] == 2
    assert [item["published"] for item in answer.json()["items"]] == [0, 1, 0, 1], "the others are told"


async def test_a_gateway_hears_of_them_from_its_backend(store: EmbeddedStore) -> None:
    await published(await made(store, "q"), draft("1"))
    await store.ledger.cut()
    asked = Totals(0, 100_000, None, None)
    assert not isinstance(await _totals(store, asked), Partly), "as before, where every row reads"
    await break_rows(store, b"l", b"m", 1)
    answer = msgspec.msgpack.encode(await _totals(store, asked))
    assert msgspec.msgpack.decode(answer, type=list[QueueTotal] | Partly) == Partly(
        [QueueTotal("default", "q", 1, {})], 1
    )


async def test_the_audit_is_told_without_rows_that_do_not_read(store: EmbeddedStore, http: httpx2.AsyncClient) -> None:
    act = msgspec.json.encode(audit_row())
    for data in (act, act, b"{}", act):
        await store.audit.put(store.audit.begin(), data, has_ended=True)
    whole = (await http.get("/v1/audit", params={"tenant": audit_row().tenant})).json()
    assert len(whole["items"]) == 3 and whole["unreadable"] == 1, "a row of a newer version, perhaps"
    await break_rows(store, b"a", b"b", 1)
    answer = await http.get("/v1/audit", params={"tenant": audit_row().tenant})
    assert answer.status_code == 200
    assert (len(answer.json()["items"]), answer.json()["next"], answer.json()["unreadable"]) == (2, None, 2)
    page = (await http.get("/v1/audit", params={"tenant": audit_row().tenant, "limit": 1})).json()
    rest = (await http.get("/v1/audit", params={"cursor": page["next"], "limit": 1})).json()
    assert len(page["items"]) == len(rest["items"]) == 1, "pages go on past them"
