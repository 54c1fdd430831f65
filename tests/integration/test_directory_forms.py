"""A metadata service of three hosts in each of its forms, as processes over a real etcd; one of three is killed."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest

from backend_store.metadata.directory.client import FORMS, DirectoryClient, Form
from backend_store.metadata.directory.core.names import arc_of
from backend_store.model import PushqError, QueueConfig
from tests.support.directory import SECRET, DirectoryHosts
from tests.support.etcd import Etcd
from tests.support.patience import PATIENCE_S
from tests.support.reference_roles import METRICS_PAGE
from tests.support.server import PushqServer

pytestmark = pytest.mark.anyio

STALENESS_SECONDS_MAX = 5.0
WITHIN_S = PATIENCE_S
WITH_ETCD = {
    "pushq_metadata_look_ups_total", "pushq_metadata_lag_seconds", "pushq_metadata_hosts", "pushq_metadata_arcs",
    "pushq_metadata_records", "pushq_metadata_handed_on_total", "pushq_metadata_ring_version",
}  # fmt: skip


class Gateway(PushqServer):
    """A server whose keys the metadata service has."""

    token = ""

    @property
    def key(self) -> str:
        return self.token


@pytest.fixture(params=FORMS)
def hosts(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DirectoryHosts]:
    (tmp_path / "etcd").mkdir()
    with Etcd(tmp_path / "etcd") as etcd, DirectoryHosts(tmp_path, etcd, request.param) as three:
        yield three


@asynccontextmanager
async def client_of(hosts: DirectoryHosts, *names: str) -> AsyncIterator[DirectoryClient]:
    form: Form = hosts.form  # type: ignore[assignment]
    client = DirectoryClient([hosts.urls[name] for name in names or hosts.names], SECRET, form)
    try:
        assert await client.connected(WITHIN_S)
        yield client
    finally:
        await client.close()


async def has_ring_of(client: DirectoryClient, count: int) -> None:
    async with asyncio.timeout(WITHIN_S):
        while True:
            try:
                if len((await client.get_ring()).urls) == count:
                    return
            except PushqError:
                pass
            await asyncio.sleep(0.1)


async def test_one_of_three_hosts_is_killed_and_known_queues_reads_and_changes_go_on(
    hosts: DirectoryHosts, tmp_path: Path
) -> None:
    async with client_of(hosts) as client:
        await has_ring_of(client, 3)
        names = [f"q{number:02}" for number in range(30)]
        for name in names:
            await client.create_queue("default", name, QueueConfig())
        await _every_host_answers(hosts, client)
        _every_host_says_how_it_is(hosts)
        gateway = Gateway(tmp_path / "gateway", env=hosts.env)
        gateway.token = hosts.key
        with gateway:
            async with httpx2.AsyncClient(base_url=gateway.url, headers=gateway.headers, timeout=20) as http:
                assert await _published(http, names[0]) == 201
                ring = await client.get_ring()
                victim = ring.hosts_of(arc_of("q", "default", names[0]))[0]
                hosts.kill(victim)
                for _ in range(20):  # at once, and as the loss is noticed
                    assert await _published(http, names[0]) == 201
                    await asyncio.sleep(0.02)
                for name in names:
                    assert (await client.get_queue("default", name)).value is not None
                assert len(await client.list_queues("default")) >= 30
                await _changes_are_seen(client, http)
                await has_ring_of(client, 2)
                hosts.start(victim)
                await has_ring_of(client, 3)
                for name in names:
                    assert (await client.get_queue("default", name)).value is not None


async def _published(http: httpx2.AsyncClient, queue: str) -> int:
    answer = await http.post(f"/v1/queues/{queue}/messages", json={"messages": [{"body": 1}]})
    return answer.status_code


def _every_host_says_how_it_is(hosts: DirectoryHosts) -> None:
    for name in hosts.names:
        url = hosts.urls[name].replace("ws", "http", 1)
        health = httpx2.get(f"{url}/health", trust_env=False)
        assert health.status_code == 200, health.text
        found = health.json()
        assert (found["status"], found["form"], found["host"]) == ("ok", hosts.form, name)
        assert found["hosts"] == hosts.names and httpx2.get(f"{url}/lbz", trust_env=False).text == "ok\n"
        text = httpx2.get(f"{url}/metrics", trust_env=False).text
        assert set(re.findall(r"^(pushq_metadata_\w+)", text, re.MULTILINE)) >= WITH_ETCD
        assert "\npushq_metadata_hosts 3.0\n" in text
        listed = set(re.findall(r"^\| `(pushq_metadata_\w+)` \|", METRICS_PAGE.read_text(), re.MULTILINE))
        told = set(re.findall(r"^# TYPE (pushq_metadata_\w+)", text, re.MULTILINE))
        assert told <= listed


async def _timeout_ms(http: httpx2.AsyncClient) -> int:
    config = (await http.get("/v1/queues/q00")).json()["config"]
    return int(config["visibility_timeout_ms"])


async def _changes_are_seen(client: DirectoryClient, http: httpx2.AsyncClient) -> None:
    """A write at the two that are left, and how long another reader, a gateway, does not know of it."""
    version = 1
    for round_ in range(3):
        queue = await client.update_queue("default", "q00", QueueConfig(visibility_timeout_ms=31_000 + round_), version)
        assert queue is not None
        version, began = queue.version, time.monotonic()
        async with asyncio.timeout(WITHIN_S):
            while await _timeout_ms(http) != 31_000 + round_:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert time.monotonic() - began <= STALENESS_SECONDS_MAX


async def _every_host_answers(hosts: DirectoryHosts, client: DirectoryClient) -> None:
    made, _ = await client.create_queue("default", "everywhere", QueueConfig())
    for name in hosts.names:
        async with client_of(hosts, name) as one, asyncio.timeout(WITHIN_S):
            while (await one.get_queue("default", "everywhere")).value != made:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
