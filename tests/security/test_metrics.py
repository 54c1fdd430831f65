"""Who reads the numbers of all tenants, on real servers: not the network, not a page, not a tenant's administrator."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import pytest

from tests.integration.calls import Client, make_key
from tests.support.server import PushqServer, free_port

THEIRS = 'pushq_queue_ready_messages{queue="secret-plans",tenant="acme"}'


class Guarded:
    """A server that shows its metrics to operators, and at an address of their own."""

    def __init__(self, server: PushqServer, own: str) -> None:
        self.server = server
        self.own = own


@pytest.fixture(scope="module", params=[1, 2], ids=["one process", "two gateways"])
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    own = f"127.0.0.1:{free_port()}"
    env = {"PUSHQ_METRICS__OPEN_TO": "nobody", "PUSHQ_METRICS__LISTEN": own, "PUSHQ_GATEWAYS": str(request.param)}
    with PushqServer(tmp_path_factory.mktemp("guarded") / "data", env=env) as server:
        with Client(base_url=server.url, headers=server.headers) as http:
            assert http.put("/v1/tenants/acme").status_code == 201
            key = make_key(http, "admin", tenant="acme")
            http.put("/v1/queues/secret-plans", headers={"Authorization": f"Bearer {key['key']}"}).raise_for_status()
        yield Guarded(server, f"http://{own}")


def test_metrics_are_an_operators(guarded: Guarded) -> None:
    with Client(base_url=guarded.server.url, headers=guarded.server.headers) as http:
        assert THEIRS in http.get("/metrics").raise_for_status().text
        administrator = make_key(http, "admin", tenant="acme")["key"]
    asked = {
        "nobody": httpx2.get(f"{guarded.server.url}/metrics"),
        "a stranger": httpx2.get(f"{guarded.server.url}/metrics", headers={"Authorization": "Bearer pushq_a_b"}),
        "an administrator": httpx2.get(
            f"{guarded.server.url}/metrics", headers={"Authorization": f"Bearer {administrator}"}
        ),
    }
    assert {who: answer.status_code for who, answer in asked.items()} == {
        "nobody": 401,
        "a stranger": 401,
        "an administrator": 403,
    }
    assert asked["nobody"].headers["www-authenticate"] == "Bearer"
    assert "/v1/metrics" in asked["an administrator"].json()["detail"]
    assert not any("secret-plans" in answer.text for answer in asked.values())
    assert httpx2.get(f"{guarded.server.url}/%6detrics").status_code == 401


def test_at_their_own_address_there_is_nothing_else(guarded: Guarded) -> None:
    answer = httpx2.get(f"{guarded.own}/metrics")
    assert answer.status_code == 200 and THEIRS in answer.text
    for path in ("/", "/v1/queues", "/console", "/livez", "/openapi.json"):
        assert httpx2.get(guarded.own + path, headers=guarded.server.headers).status_code == 404
    assert httpx2.post(f"{guarded.own}/metrics").status_code == 405


def test_no_page_of_another_site_reads_them(shared_server: PushqServer) -> None:
    url = f"{shared_server.url}/metrics"
    plain = httpx2.get(url, headers={"Origin": "https://evil.example"})
    assert plain.status_code == 200, "a process of this machine, as in the first steps"
    assert "access-control-allow-origin" not in plain.headers
    # A name of its own that leads to this machine, and a proxy beside the server.
    assert httpx2.get(url, headers={"Host": "rebound.example"}).status_code == 401
    assert httpx2.get(url, headers={"X-Forwarded-For": "192.0.2.7"}).status_code == 401
