"""The pages' routes alone: what is served with and without `--dev`, and to whom."""

from __future__ import annotations

import httpx2
import pytest
from starlette.applications import Starlette

from web_console.pages.demo import is_loopback
from web_console.routes import ConsoleContext, routes

URL = "http://127.0.0.1:8080"


class World:
    """The console on its own, with a crash that only counts."""

    def __init__(self, *, dev: bool) -> None:
        self.crashes = 0
        context = ConsoleContext(dev=dev, demo_token=self._token, version="1.2.3", crash=self._crash)
        transport = httpx2.ASGITransport(Starlette(routes=routes(context)))
        self.client = httpx2.AsyncClient(transport=transport, base_url=URL)

    async def _token(self) -> str:
        return "pushq_demo_secret"

    def _crash(self) -> None:
        self.crashes += 1


@pytest.mark.anyio
async def test_without_dev_there_is_no_demo_and_nothing_to_crash() -> None:
    world = World(dev=False)
    for method, path in (("GET", "/demo"), ("POST", "/demo/token"), ("POST", "/demo/crash")):
        answer = await world.client.request(method, path, headers={"Origin": URL})
        assert answer.status_code == 404, path
    index = await world.client.get("/")
    assert "/docs" in index.text and "with <code>--dev</code>" in index.text
    assert world.crashes == 0


@pytest.mark.anyio
async def test_with_dev_the_page_of_this_server_gets_a_key_and_may_crash_it() -> None:
    world = World(dev=True)
    assert 'href="/demo"' in (await world.client.get("/")).text
    token = await world.client.post("/demo/token", headers={"Origin": URL, "Sec-Fetch-Site": "same-origin"})
    assert token.json() == {"token": "pushq_demo_secret"}
    assert token.headers["cache-control"] == "no-store"
    await world.client.post("/demo/crash", headers={"Origin": URL})
    assert world.crashes == 1


@pytest.mark.anyio
@pytest.mark.parametrize("path", ["/", "/demo"])
async def test_pages_run_no_foreign_and_no_inline_code(path: str) -> None:
    answer = await World(dev=True).client.get(path)
    assert answer.headers["content-security-policy"].startswith("default-src 'self';")
    assert "<style" not in answer.text and "style=" not in answer.text and " on" + "click" not in answer.text
    assert "1.2.3" in answer.text


@pytest.mark.anyio
async def test_the_sdk_is_a_script_that_other_origins_may_import() -> None:
    client = World(dev=False).client
    answer = await client.get("/static/pushq.js")
    assert "javascript" in answer.headers["content-type"]
    assert answer.headers["access-control-allow-origin"] == "*"
    again = await client.get("/static/pushq.js", headers={"If-None-Match": answer.headers["etag"]})
    assert again.status_code == 304


@pytest.mark.anyio
async def test_no_path_leads_out_of_the_static_files() -> None:
    for path in ("/static/../routes.py", "/static/%2e%2e/routes.py", "/static/%2e%2e%2froutes.py"):
        assert (await World(dev=False).client.get(path)).status_code == 404


@pytest.mark.parametrize("host", ["localhost", "app.localhost", "127.0.0.1", "127.8.8.8", "::1"])
def test_loopback_names_are_known(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["", "localhost.example", "example.com", "10.0.0.1", "127.0.0.1.example"])
def test_other_names_are_not_loopback(host: str) -> None:
    assert not is_loopback(host)
