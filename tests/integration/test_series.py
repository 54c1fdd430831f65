"""Series of a real server: what `/v1/…/series` says, to whom, and after a restart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.support.patience import until
from tests.support.server import PushqServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PushqServer]:
    with PushqServer(tmp_path_factory.mktemp("series") / "data") as server:
        yield server


def client(server: PushqServer, key: str | None = None) -> httpx2.Client:
    headers = {"Authorization": f"Bearer {key or server.key}"}
    return httpx2.Client(base_url=server.url, headers=headers, trust_env=False, timeout=20)


@pytest.fixture
def http(server: PushqServer) -> Iterator[httpx2.Client]:
    with client(server) as http:
        yield http


def made_key(http: httpx2.Client, tenant: str, *scopes: str) -> str:
    http.put(f"/v1/tenants/{tenant}", json={}).raise_for_status()
    body = {"name": "someone", "tenant": tenant, "scopes": list(scopes)}
    key: str = http.post("/v1/keys", json=body).raise_for_status().json()["key"]
    return key


def series(http: httpx2.Client, path: str, **query: str) -> dict[str, Any]:
    found: dict[str, Any] = http.get(path, params=query).raise_for_status().json()
    assert len({len(column) for column in found["series"].values()}) == 1
    return found


def ready(http: httpx2.Client, queue: str, range: str = "15m") -> list[float | None]:
    column: list[float | None] = series(http, f"/v1/queues/{queue}/series", range=range)["series"]["ready"]
    return column


def test_a_queue_shows_in_its_series_and_still_does_after_a_restart(server: PushqServer, http: httpx2.Client) -> None:
    http.put("/v1/queues/orders", json={}).raise_for_status()
    body = {"messages": [{"body": n} for n in range(12)]}
    http.post("/v1/queues/orders/messages", json=body).raise_for_status()
    until(lambda: 12 in ready(http, "orders"), "the messages are in the series")
    assert (
        12 in ready(http, "orders", "24h") and 12 in ready(http, "orders", "6h") and 12 in ready(http, "orders", "1h")
    )
    assert 12 in series(http, "/v1/series")["series"]["ready"]
    assert any(series(http, "/v1/series/node")["series"]["memory_bytes"])
    (spark,) = http.get("/v1/series/queues", params={"points": "9"}).raise_for_status().json()["items"]
    assert spark["queue"] == "orders" and len(spark["values"]) == 9 and 12 in spark["values"]
    http.put("/v1/queues/other", json={}).raise_for_status()
    found = http.get("/v1/series/queues", params={"points": "9", "names": "orders,nowhere"}).raise_for_status().json()
    assert (found["items"], found["next"]) == ([spark], None)
    assert server.stop().exit_code == 0
    server.start()
    with client(server) as again:
        until(lambda: 12 in ready(again, "orders"), "the series are there again")
        assert ready(again, "orders").count(12) >= 1


def test_another_tenant_sees_nothing_of_it(server: PushqServer, http: httpx2.Client) -> None:
    http.put("/v1/queues/secret", json={}).raise_for_status()
    with client(server, made_key(http, "acme", "admin")) as other:
        assert other.get("/v1/queues/secret/series").status_code == 404
        assert other.get("/v1/series", params={"tenant": "default"}).status_code == 404
        assert other.get("/v1/series/node").status_code == 403
        assert not any(series(other, "/v1/series")["series"]["ready"])
        assert other.get("/v1/series/queues").raise_for_status().json()["items"] == []
    with client(server, made_key(http, "acme", "view:shop.*")) as viewer:
        assert viewer.get("/v1/series").status_code == 403


def test_what_is_asked_wrongly_is_named(http: httpx2.Client) -> None:
    http.put("/v1/queues/orders", json={}).raise_for_status()
    assert "range" in http.get("/v1/queues/orders/series", params={"range": "1w"}).json()["detail"]
    assert "metric" in http.get("/v1/series/queues", params={"metric": "depth"}).json()["detail"]
    assert "dead" in http.get("/v1/queues/orders.dead/series").json()["detail"]
