"""The whole application in this process: what a real server does too rarely to wait for."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from structlog.testing import capture_logs

from backend_store.client import ASKED, Store, waited_until
from backend_store.model import Overloaded, QueueConfig
from gateway.admission.rate_rules import RateRule
from gateway.api import timeouts
from gateway.app import Application, create_app
from gateway.config.settings import Settings, Throttling
from gateway.identity.authentication import Keyring
from tests.unit.gateway.conftest import Clock
from throttling.limiter import MemoryLimiter

pytestmark = pytest.mark.anyio

PUBLISH = {"messages": [{"body": 1}]}


@pytest.fixture
async def app(store: Store, clock: Clock) -> AsyncIterator[Application]:
    limiter = MemoryLimiter(clock_ns=lambda: clock.ms * 1_000_000)
    settings = Settings(throttling=Throttling(rules=(RateRule("principal", quota=10),)))
    app = create_app(store, settings, limiter=limiter, clock_ms=clock)
    await store.create_queue("default", "q", QueueConfig())
    yield app
    await app.gateway.hub.close()


@pytest.fixture
async def http(app: Application) -> AsyncIterator[httpx2.AsyncClient]:
    made = await app.gateway.keyring.create(name="k", tenant="default", scopes=("admin",))
    transport = httpx2.ASGITransport(app, raise_app_exceptions=True)
    headers = {"Authorization": f"Bearer {made.token}"}
    async with httpx2.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client:
        yield client


async def test_above_the_rate_calls_wait(http: httpx2.AsyncClient, clock: Clock) -> None:
    answers = [await http.get("/v1/queues") for _ in range(11)]
    assert [a.status_code for a in answers] == [200] * 10 + [429]
    assert [a.headers["ratelimit"] for a in answers[:2]] == ['"principal";r=9;t=1', '"principal";r=8;t=1']
    refused = answers[-1]
    assert refused.json()["code"] == "rate-limited" and refused.json()["retry_after_ms"] == 100
    assert (refused.headers["retry-after"], refused.headers["ratelimit"]) == ("1", '"principal";r=0;t=1')
    clock.ms += 100
    assert (await http.get("/v1/queues")).status_code == 200


async def test_a_stranger_does_not_use_up_the_rate_of_a_key(http: httpx2.AsyncClient) -> None:
    stranger = {"Authorization": "Bearer nobody"}
    assert [(await http.get("/v1/x", headers=stranger)).status_code for _ in range(12)] == [401] * 12
    assert (await http.get("/v1/queues")).status_code == 200


async def test_our_mistake_is_a_problem_with_a_number_and_a_line_in_the_log(
    app: Application, http: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any) -> Any:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(type(app.gateway.desk), "queue", broken)
    with capture_logs() as logs:
        answer = await http.get("/v1/queues/q")
    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    assert "secret" not in answer.text
    (line,) = [line for line in logs if line["event"] == "request failed"]
    assert line["trace_id"] == answer.json()["trace_id"]


async def test_a_mistake_beside_the_api_is_a_problem_too(
    http: httpx2.AsyncClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store.node, "publishes_allowed", lambda: 1 / 0)
    with capture_logs():
        answer = await http.get("/readyz")
    assert (answer.status_code, answer.headers["content-type"]) == (500, "application/problem+json")


async def test_a_full_disk_stops_publishes_and_nothing_else(http: httpx2.AsyncClient, store: Store) -> None:
    await http.post("/v1/queues/q/messages", json=PUBLISH)
    store.node.space = SimpleNamespace(publishes_allowed=False, reason="full", refresh=lambda: None)  # type: ignore[assignment]
    refused = await http.post("/v1/queues/q/messages", json=PUBLISH)
    assert (refused.status_code, refused.json()["code"]) == (507, "storage-full")
    (message,) = (await http.post("/v1/queues/q/receive", json={})).json()["messages"]
    acked = await http.post("/v1/queues/q/ack", json={"receipts": [message["receipt"]]})
    assert acked.json()["results"][0]["ok"]
    assert (await http.get("/readyz")).status_code == 503
    told = (await http.get("/readyz?verbose")).json()
    assert told["code"] == "unavailable" and "full" in told["checks"].pop("disk")
    assert told["checks"] == {"draining": "ok", "load": "ok"}
    assert [(await http.get(path)).status_code for path in ("/lbz", "/livez")] == [200, 200]
    assert "pushq_publishes_allowed 0.0" in (await http.get("/metrics", headers={"Host": "localhost"})).text


async def test_a_draining_gateway_takes_acks_and_nothing_new(app: Application, http: httpx2.AsyncClient) -> None:
    await http.post("/v1/queues/q/messages", json=PUBLISH)
    (message,) = (await http.post("/v1/queues/q/receive", json={})).json()["messages"]
    app.gateway.hub.draining = True
    for path, body in (("messages", PUBLISH), ("receive", {})):
        refused = await http.post(f"/v1/queues/q/{path}", json=body)
        assert (refused.status_code, refused.json()["code"]) == (503, "draining") and "retry-after" in refused.headers
    assert (await http.get("/v1/queues/q/events")).json()["code"] == "draining"
    acked = await http.post("/v1/queues/q/ack", json={"receipts": [message["receipt"]]})
    assert acked.json()["results"][0]["ok"]
    assert [(await http.get(path)).status_code for path in ("/readyz", "/lbz", "/livez")] == [503, 404, 200]


async def test_head_of_a_stream_holds_nothing(app: Application, http: httpx2.AsyncClient) -> None:
    answer = await http.head("/v1/queues/q/events")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    assert app.gateway.hub.connections == 0 and app.gateway.store.queue("default", "q").consumers == 0


async def test_a_plain_request_to_the_socket_is_told_what_it_is(http: httpx2.AsyncClient) -> None:
    answer = await http.get("/v1/ws")
    assert answer.status_code == 404 and "WebSocket" in answer.json()["detail"]


async def test_only_the_local_socket_is_local(app: Application, store: Store, clock: Clock) -> None:
    made = await Keyring(store, clock).create(name="k", tenant="default", scopes=("admin",))
    headers = {"Authorization": f"Bearer {made.token}"}
    path = "/v1/queues/q?confirm=q&discard=true"
    for asgi, status in ((app, 403), (app.local, 200)):
        transport = httpx2.ASGITransport(asgi)  # type: ignore[arg-type]
        async with httpx2.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client:
            assert (await client.delete(path)).status_code == status


async def test_a_read_that_was_not_over_in_time_is_no_mistake_of_ours(
    app: Application, http: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def endless(*args: Any) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(type(app.gateway.store.queue("default", "q")), "peek", endless)
    answer = await http.get("/v1/queues/q/messages", headers={"Pushq-Timeout-Ms": "1"})
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    ((*_, outcome),) = app.gateway.usage.meter.recent()[-1][1]
    assert outcome == "unavailable"


async def test_the_outcome_of_an_act_is_written_down_whatever_time_its_caller_has_left(
    app: Application, http: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit, waited = app.gateway.store.audit, []
    write = audit.put

    async def put(seq: int, data: bytes, *, has_ended: bool) -> None:
        waited.append((has_ended, waited_until() == math.inf))
        await write(seq, data, has_ended=has_ended)

    monkeypatch.setattr(audit, "put", put)
    assert (await http.put("/v1/queues/new", json={}, headers={"Pushq-Timeout-Ms": "60000"})).status_code == 201
    assert waited == [(False, False), (True, True)]


async def test_a_change_that_goes_on_counts_until_it_is_over(
    app: Application, http: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeouts, "LATE_CHANGES_PER_CALLER_MAX", 1)
    create, begun, end = app.gateway.store.create_queue, asyncio.Event(), asyncio.Event()

    async def slow(*args: Any) -> Any:
        begun.set()
        await end.wait()
        return await create(*args)

    monkeypatch.setattr(app.gateway.store, "create_queue", slow)
    hasty = {"Pushq-Timeout-Ms": "1"}
    late = asyncio.create_task(http.put("/v1/queues/new", json={}, headers=hasty))  # over when the change is, here
    await begun.wait()
    while not any(status == 504 for _, _, status in app.api.answers):  # noqa: ASYNC110 - it has no event for it
        await asyncio.sleep(0.005)
    refused = await http.put("/v1/queues/more", json={}, headers=hasty)
    assert (refused.status_code, refused.json()["code"]) == (503, "overloaded")
    assert (await http.get("/v1/queues/q", headers={"Pushq-Timeout-Ms": "60000"})).status_code == 200
    end.set()
    assert (await late).json()["code"] == "outcome-unknown"
    assert (await http.get("/v1/queues/new", headers={"Pushq-Timeout-Ms": "60000"})).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("POST", "/v1/queues/q/receive", {"wait_ms": 60_000}, 503, "draining"),
        ("GET", "/v1/queues/q", None, 503, "draining"),
        ("POST", "/v1/queues/q/messages", PUBLISH, 504, "outcome-unknown"),
    ],
)
async def test_what_a_shutdown_does_not_wait_for_is_told_so(
    app: Application,
    http: httpx2.AsyncClient,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    path: str,
    body: Any,
    status: int,
    code: str,
) -> None:
    """The listener cancels what is not over in time: its client hears what may have become of it, and no bare 500."""
    begun = asyncio.Event()

    async def stuck(*args: Any, **more: Any) -> Any:
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr("gateway.api.dispatch.perform", stuck)
    request = asyncio.create_task(http.request(method, path, json=body))
    await begun.wait()
    app.gateway.hub.draining = True
    request.cancel()
    answer = await request
    assert (answer.status_code, answer.json()["code"]) == (status, code)


async def test_what_is_cancelled_by_others_is_not_answered(
    http: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = asyncio.Event()

    async def stuck(*args: Any, **more: Any) -> Any:
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr("gateway.api.dispatch.perform", stuck)
    request = asyncio.create_task(http.get("/v1/queues/q"))
    await begun.wait()
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request


@pytest.mark.parametrize(("scope", "whose"), [("admin", "default"), ("operator", None)])
async def test_what_a_request_asks_elsewhere_is_on_its_tenants_account_and_an_operators_is_on_none(
    app: Application, http: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch, scope: str, whose: str | None
) -> None:
    made = await app.gateway.keyring.create(name="other", tenant="default", scopes=(scope,))
    seen = []

    async def peek(*args: Any) -> Any:
        request = ASKED.get()
        assert request is not None
        seen.append(request.whose)
        raise Overloaded("full")

    monkeypatch.setattr(type(app.gateway.store.queue("default", "q")), "peek", peek)
    await http.get("/v1/queues/q/messages", headers={"Authorization": f"Bearer {made.token}"})
    assert seen == [whose]
