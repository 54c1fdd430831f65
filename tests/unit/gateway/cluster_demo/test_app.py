"""Who may look at the cluster's demo, and who may kill."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from gateway.cluster_demo.app import Demo, create_demo_app
from gateway.cluster_demo.keeper import Keeper, NoSuchPart
from gateway.cluster_demo.serving import serve_demo
from gateway.cluster_demo.tally import Tally
from gateway.config.addresses import Address
from gateway.dev_cluster.state import Part, State, save, started_ticks
from gateway.roles.errors import CannotStart

URL = "http://127.0.0.1:8080"
OWN = {"Authorization": "Bearer right", "Origin": URL}


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def keeper(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> Keeper:
    """Of a cluster whose one part is a sleeper."""
    part = Part("gateway", "gateway1", "127.0.0.1:1", "http://127.0.0.1:1/readyz", [], {}, str(tmp_path / "log"))
    part.pid, part.started = sleeper.pid, started_ticks(sleeper.pid) or 0
    save(tmp_path, State([part]))
    return Keeper(tmp_path, lambda part: None)


@pytest.fixture
def http(keeper: Keeper) -> TestClient:
    return TestClient(create_demo_app(Demo(keeper, Tally(), "right", "http://127.0.0.1:2")), base_url=URL)


def test_the_page_kills_a_part(http: TestClient, sleeper: subprocess.Popen[bytes]) -> None:
    assert http.get("/").status_code == 200
    [part] = http.get("/state", headers=OWN).json()["parts"]
    assert (part["name"], part["state"], part["pid"]) == ("gateway1", "up", sleeper.pid)
    assert http.post("/parts/gateway1/kill", headers=OWN).status_code == 204
    assert sleeper.wait() == -9
    told = http.get("/state", headers=OWN).json()
    assert told["parts"][0]["state"] == "down"
    assert f"gateway1 got SIGKILL (process {sleeper.pid})" in told["events"][0]["text"]
    again = http.post("/parts/gateway1/kill", headers=OWN)
    assert again.status_code == 409 and "is not running" in again.text


def test_a_part_that_is_not_there_is_named(keeper: Keeper) -> None:
    with pytest.raises(NoSuchPart, match="no process 'gateway9'"):
        keeper.kill("gateway9")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": URL}, 401),
        ({"Origin": URL, "Authorization": "Bearer wrong"}, 401),
        ({"Authorization": "Bearer right"}, 403),
        ({"Authorization": "Bearer right", "Origin": "https://example.com"}, 403),
        ({"Authorization": "Bearer right", "Origin": URL, "Sec-Fetch-Site": "cross-site"}, 403),
        ({"Authorization": "Bearer right", "Origin": "http://pushq.example", "Host": "pushq.example"}, 403),
    ],
    ids=[
        "no token",
        "another token",
        "use an origin such as https://shop.example",
        "foreign origin",
        "cross-site",
        "a name that is not loopback",
    ],
)
def test_nobody_else_kills(
    headers: dict[str, str], status: int, http: TestClient, sleeper: subprocess.Popen[bytes]
) -> None:
    assert http.post("/parts/gateway1/kill", headers=headers).status_code == status
    assert sleeper.poll() is None


def test_nobody_else_looks(http: TestClient) -> None:
    assert http.get("/state").status_code == 401
    assert http.get("/state", headers=OWN | {"Host": "pushq.example"}).status_code == 403
    assert http.get("/", headers={"Host": "pushq.example"}).status_code == 403
    assert "right" not in http.get("/").text


def test_it_listens_on_this_machine_alone(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match="the demo kills processes on request, so it only"):
        serve_demo(tmp_path / "cluster", Address("0.0.0.0", 8080), print, print)
    assert not (tmp_path / "cluster").exists()
