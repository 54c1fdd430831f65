"""Usage where a real `pushq backend` keeps the messages: its files have the ledger and the audit, whoever is killed."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from gateway.usage.files import found, read
from tests.cluster.test_cluster import leads
from tests.support.backends import ROLE, Backend
from tests.support.patience import until
from tests.support.server import PushqServer
from tests.support.tls import Authority
from tests.support.usage import ledger_of

PERIOD = {"PUSHQ_USAGE__PERIOD_SECONDS": "1"}


class Alone:
    """One backend with the embedded coordinator, and its gateways."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority(folder / "ca")
        self.backend = Backend("a", folder, self.authority, "embedded", ROLE, env=PERIOD)
        self.gateways: list[PushqServer] = []

    def gateway(self, name: str) -> PushqServer:
        data = self.folder / name
        data.mkdir(mode=0o700)
        for secret in ("master.key", "admin.key") if self.gateways else ():
            (data / secret).write_bytes((self.gateways[0].data / secret).read_bytes())
            (data / secret).chmod(0o600)
        pair = self.authority.issue(name)
        env = {
            **PERIOD,
            "PUSHQ_STORE__BACKENDS": self.backend.service,
            "PUSHQ_STORE__TLS_CERT": str(pair.certificate),
            "PUSHQ_STORE__TLS_KEY": str(pair.key),
            "PUSHQ_STORE__TLS_CA": str(self.authority.certificate),
        }
        gateway = PushqServer(data, env=env)
        self.gateways.append(gateway)
        return gateway.start(ready_s_max=120)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Alone]:
    made = Alone(tmp_path)
    made.backend.start()
    yield made
    for gateway in made.gateways:
        gateway.kill()
    if made.backend.is_running:
        made.backend.end()


def client(gateway: PushqServer) -> httpx2.Client:
    return httpx2.Client(base_url=gateway.url, headers=gateway.headers, timeout=60, trust_env=False)


def acts(http: httpx2.Client) -> list[tuple[str, str, str]]:
    items: list[dict[str, Any]] = http.get("/v1/audit").raise_for_status().json()["items"]
    return [(one["action"], one["target"], one["outcome"]) for one in items]


def test_a_backend_alone_writes_the_ledger_also_after_a_kill(alone: Alone) -> None:
    with client(alone.gateway("g0")) as http:
        http.put("/v1/queues/q").raise_for_status()
        http.post("/v1/queues/q/messages", json={"messages": [{"body": n} for n in range(9)]}).raise_for_status()
        held = http.post("/v1/queues/q/receive", json={"max": 4}).raise_for_status().json()["messages"]
        http.post("/v1/queues/q/ack", json={"receipts": [one["receipt"] for one in held]}).raise_for_status()
        alone.backend.end(signal.SIGKILL)
        alone.backend.start()
        until(lambda: leads(alone.backend, 0), "it leads again")
        (total,) = http.get("/v1/usage").raise_for_status().json()["items"]
        assert (total["published"], total["delivered"]) == (9, 4)
    alone.gateways[0].stop()
    assert alone.backend.end(signal.SIGTERM) == 0
    counts, left, report = ledger_of(alone.backend.data / "usage", "q")
    assert not report.broken and (counts["published"], counts["settled"], left) == (9, 4, 5)


def test_acts_outlive_the_gateway_that_was_killed_with_them(alone: Alone) -> None:
    first, second = alone.gateway("g0"), alone.gateway("g1")
    with client(first) as http:
        http.put("/v1/queues/q").raise_for_status()
        first.kill()
    with client(second) as http:
        http.put("/v1/queues/r").raise_for_status()
        assert acts(http) == [("queues.put", "/v1/queues/r", "ok"), ("queues.put", "/v1/queues/q", "ok")]
    until(lambda: len(written(alone)) == 2, "both acts are in a file")
    assert {(row.action, row.target, row.outcome) for row in written(alone)} == {
        ("queues.put", f"/v1/queues/{queue}", "ok") for queue in "qr"
    }


def written(alone: Alone) -> list[Any]:
    folder = alone.backend.data / "usage"
    if not folder.exists():
        return []
    return [row for file in found(folder) if file.kind == "audit" for row in read(file)]
