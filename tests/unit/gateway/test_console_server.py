"""The console over the application in this process: what a real server cannot be made to do when a test wants it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from structlog.testing import capture_logs

from backend_store.client import Store
from backend_store.model import Unauthenticated, Unavailable
from gateway.app import Application, create_app
from gateway.config.settings import Settings
from gateway.console_server import ConsoleServer
from tests.unit.gateway.conftest import Clock

pytestmark = pytest.mark.anyio

URL = "http://test"


@pytest.fixture
async def app(store: Store, clock: Clock) -> AsyncIterator[Application]:
    app = create_app(store, Settings(), clock_ms=clock)
    yield app
    await app.gateway.hub.close()


async def key_of(app: Application, tenant: str = "default") -> str:
    made = await app.gateway.keyring.create(name="k", tenant=tenant, scopes=("admin", "operator"))
    return made.token


@asynccontextmanager
async def browser(app: Application) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app, raise_app_exceptions=True), base_url=URL, headers={"Origin": URL}
    ) as client:
        yield client


async def sign_in(client: httpx2.AsyncClient, credential: str) -> httpx2.Response:
    return await client.post("/console/login", data={"credential": credential})


def is_page(answer: httpx2.Response) -> bool:
    return answer.headers["content-type"].startswith("text/html")


def once(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, error: Exception) -> None:
    """The next call of a method fails, those after it do not."""
    call: Callable[..., Any] = getattr(owner, name)

    def failing(*arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(owner, name, call)
        raise error

    monkeypatch.setattr(owner, name, failing)


async def test_an_issuer_that_is_away_signs_nobody_out(app: Application, monkeypatch: pytest.MonkeyPatch) -> None:
    async with browser(app) as client:
        assert (await sign_in(client, await key_of(app))).status_code == 303
        once(monkeypatch, app.gateway.keyring, "identify", Unavailable("the keys of the issuer are away"))
        page = await client.get("/console/help")
        assert page.status_code == 503 and "keys of the issuer" in page.text and is_page(page)
        assert (await client.get("/console/help")).status_code == 200
        once(monkeypatch, app.gateway.keyring, "identify", Unauthenticated("revoked"))
        assert (await client.get("/console/help")).status_code == 303
        assert (await client.get("/console/help")).status_code == 303, "the session is over"


async def test_an_issuer_that_is_away_is_no_refused_sign_in(app: Application, monkeypatch: pytest.MonkeyPatch) -> None:
    credential = await key_of(app)
    async with browser(app) as client:
        for _ in range(30):
            once(monkeypatch, app.gateway.keyring, "identify", Unavailable("away"))
            assert (await sign_in(client, credential)).status_code == 503
        assert (await sign_in(client, credential)).status_code == 303


async def test_a_list_of_queues_that_cannot_be_made_now_is_a_page_that_says_so(
    app: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with browser(app) as client:
        await sign_in(client, await key_of(app))
        once(monkeypatch, app.gateway.store, "names", Unavailable("no leader yet"))
        page = await client.get("/console/queues")
        assert page.status_code == 503 and "no leader yet" in page.text and is_page(page)
        assert (await client.get("/console/queues")).status_code == 200


async def test_what_cannot_be_written_down_lets_nobody_in_and_everybody_out(
    app: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    credential = await key_of(app)
    audit = app.gateway.store.audit
    async with browser(app) as client:
        once(monkeypatch, audit, "_write", Unavailable("the disk is away"))
        refused = await sign_in(client, credential)
        assert refused.status_code == 503 and "the disk is away" in refused.text and is_page(refused)
        assert not client.cookies
        assert (await sign_in(client, credential)).status_code == 303
        once(monkeypatch, audit, "_write", Unavailable("the disk is away"))
        assert (await client.post("/console/logout")).headers["location"] == "/console/login"
        assert (await client.get("/console/help")).status_code == 303
        assert (await sign_in(client, credential)).status_code == 303
    assert [b"console.login" in entry.data for entry in audit.waiting()] == [True, True]


async def test_a_page_that_fails_is_a_page_with_the_menu_and_the_failure_is_logged(
    app: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with browser(app) as client:
        await sign_in(client, await key_of(app))
        once(monkeypatch, app.gateway.store, "names", ValueError("a bug"))
        with capture_logs() as logged:
            page = await client.get("/console/queues")
        assert page.status_code == 500 and is_page(page) and 'data-key="q"' in page.text and "a bug" not in page.text
        assert [one["path"] for one in logged if one["event"] == "a page failed"] == ["/console/queues"]
        assert (await client.get("/console/queues")).status_code == 200


async def test_addresses_that_are_none_are_answered(app: Application) -> None:
    async with browser(app) as client:
        assert (await client.get("/console/login", params={"next": "//["})).status_code == 200
        assert (await client.get("/console/live", params={"page": "//["})).status_code == 401
        credential = await key_of(app)
        form = {"credential": credential, "next": "//["}
        for origin in ("http://[", "//["):
            answer = await client.post("/console/login", data=form, headers={"Origin": origin})
            assert answer.status_code == 403
        assert (await client.post("/console/login", data=form)).headers["location"] == "/console"
        token = (await client.get("/console/queues")).text.partition('name="form_token" value="')[2].partition('"')[0]
        done = await client.post("/console/do/silence", data={"form_token": token, "back": "//["})
        assert done.status_code == 400
        form = {"form_token": token, "back": "//[", "queue": "*", "reason": "quiet", "duration": "1h"}
        done = await client.post("/console/do/silence", data=form)
        assert (done.status_code, done.headers["location"]) == (303, "/console")


async def test_a_new_tenant_has_no_dashboards_of_one_before_it_of_its_name(app: Application) -> None:
    server = ConsoleServer(app.gateway, app.api)
    await app.gateway.store.metadata.put_tenant("shop", 1)
    await server.save_dashboard("shop", "mine", ("orders",))
    await server.save_dashboard("shop2", "mine", ("orders",))
    async with browser(app) as client:
        operator = {"Authorization": f"Bearer {await key_of(app)}"}
        assert (await client.delete("/v1/tenants/shop", headers=operator)).status_code == 204
        await client.put("/v1/tenants/shop", json={}, headers=operator)
        await sign_in(client, await key_of(app, "shop"))
        assert (await client.get("/console/dashboards", params={"format": "json"})).json()["items"] == []
    assert server.dashboards("shop") == {} and server.dashboards("shop2") == {"mine": ("orders",)}


async def test_an_address_without_a_page_is_a_page_for_browsers_and_a_problem_for_others(app: Application) -> None:
    async with browser(app) as client:
        asked = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
        for _ in range(2):
            for path in ("/console/nothing", "/console/do/publish", "/console/queues/orders/nothing"):
                page = await client.get(path, headers=asked)
                assert page.status_code == 404 and is_page(page) and f"no page &#39;{path}&#39;" in page.text
                assert (await client.get(path)).json()["code"] == "not-found"
            is_signed_in = "</nav>" in page.text and 'data-key="q"' in page.text
            await sign_in(client, await key_of(app))
        assert is_signed_in, "it has the menu"
        gone = await client.get("/console/queues/orders", headers=asked)
        assert gone.status_code == 404 and 'data-key="q"' in gone.text
