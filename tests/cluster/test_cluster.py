"""A cluster as its users have it: etcd, three `pushq backend`, two gateways, clients at both, and the leader killed."""

from __future__ import annotations

import asyncio
import itertools
import math
import signal
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio.to_thread
import httpx2
import pytest

from tests.support.backends import ROLE, Backend, Backends
from tests.support.consumers import Socket, call, http_client
from tests.support.history import Kind, QueueHistory
from tests.support.patience import eventually, until
from tests.support.prerequisites import require
from tests.support.server import PushqServer

pytestmark = pytest.mark.anyio

SHARDS = 2
KILLED = {"definitions": 0, "messages alone": 1}
"""The shard whose leader is killed, by what lies there."""
SERVICE_S_MAX = 90.0
"""Far above what is promised, 10 s: these machines are busy, and etcd may take its time."""
MESSAGES_BETWEEN = 10
PAUSE_S = 0.2
"""Between two publishes of a producer: what is told here is the clients' way on, and no rate."""
VISIBILITY_MS = 15_000
"""More than a busy machine takes from a delivery to its ack, so nothing runs out but by the killed leader."""
NEVER = {Kind.LOST, Kind.VANISHED, Kind.RESURRECTED, Kind.INVENTED, Kind.REFUSED_BUT_THERE}
"""RESURRECTED counts deliveries after a confirmed ack. A second delivery before one is what a lost leader costs."""


@pytest.fixture(autouse=True)
def _needs_etcd() -> None:
    require("etcd")


class Load:
    """A producer and a consumer of a queue at each gateway, and what they saw."""

    def __init__(self, gateways: list[PushqServer], queue: str):
        self.queue = queue
        self.history = QueueHistory()
        self.stop = asyncio.Event()
        self.trail: dict[str, list[str]] = defaultdict(list)
        """What became of each message, in order."""
        self._acked_at: dict[str, float] = {}
        self._gateways = gateways

    def told(self, body: str, what: str) -> None:
        self.trail[body].append(f"{time.monotonic():.3f} {what}")

    def broken(self) -> str:
        """What must never be and was, with the whole way of each message; empty when all is well."""
        found = [one for one in self.history.violations(()) if one.kind in NEVER]
        return "\n".join(f"{one}\n  " + "\n  ".join(self.trail[one.message]) for one in found[:20])

    async def produce(self, name: str, http: httpx2.AsyncClient) -> None:
        for number in itertools.count():
            if self.stop.is_set():
                return
            await asyncio.sleep(PAUSE_S)
            body = f"{name}-{number}"
            self.history.sent.add(body)
            self.told(body, f"{name} publishes")
            answer = await http.post(f"/v1/queues/{self.queue}/messages", json={"messages": [{"body": body}]})
            self.told(body, f"{answer.status_code} {answer.text}")
            if answer.status_code == 201:
                self.history.confirmed.add(body)
                assert answer.json()["durability"]["replicas"] >= 2, answer.text
            elif answer.json()["code"] == "outcome-unknown":
                continue
            else:
                assert answer.json()["code"] in ("unavailable", "overloaded", "not-durable"), answer.text
                self.history.refused.add(body)

    async def consume(self, name: str, socket: Socket) -> None:
        # One at a time: what waits here unread might have run out and been acked elsewhere before it is counted.
        subscribed = await socket.ask(within_s=SERVICE_S_MAX, type="subscribe", queue=self.queue, credit=1)
        assert subscribed["type"] == "ok", subscribed
        while True:
            frame = await socket.frame("message", 3 * SERVICE_S_MAX)
            message = frame["message"]
            body = message["body"]
            # It may have come while this consumer still waited for the answer to its last ack.
            is_after = frame["came_at"] > self._acked_at.get(body, math.inf)
            self.history.deliver(body, message["attempt"], name, after_ack=is_after)
            self.told(body, f"{name} was given at {frame['came_at']:.3f} {message}")
            receipts = [message["receipt"]]
            self.history.settling.add(body)  # answered or not: the test may end while the answer is on its way
            answer = await socket.ask(within_s=SERVICE_S_MAX, type="ack", queue=self.queue, receipts=receipts)
            self.told(body, f"{name} acked: {answer}")
            if answer["type"] == "ok" and answer["results"][0]["ok"]:
                self.history.acked.add(body)
                self._acked_at.setdefault(body, time.monotonic())

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        one, two = self._gateways
        async with (
            patient(one) as first,
            patient(two) as second,
            Socket.open(one) as here,
            Socket.open(two) as there,
        ):
            producers = [
                asyncio.create_task(self.produce("p0", first)),
                asyncio.create_task(self.produce("p1", second)),
            ]
            consumers = [
                asyncio.create_task(self.consume("c0", here)),
                asyncio.create_task(self.consume("c1", there)),
            ]
            self.tasks = [*producers, *consumers]
            try:
                yield
                self.stop.set()
                await asyncio.gather(*producers)
                await self.empty(first)
            finally:
                self.stop.set()
                for task in self.tasks:
                    task.cancel()
                await asyncio.gather(*self.tasks, return_exceptions=True)

    async def empty(self, http: httpx2.AsyncClient) -> None:
        """An ack whose answer was lost with the leader was done, or its message comes again."""
        async with asyncio.timeout(SERVICE_S_MAX):
            while True:
                stats = (await call(http, "GET", self.queue))["stats"]
                if stats["ready"] + stats["in_flight"] + stats["delayed"] == 0:
                    return
                await asyncio.sleep(0.2)

    async def until(self, is_so: Callable[[], bool]) -> float:
        """How long it took, in seconds."""
        return await eventually(is_so, within_s=SERVICE_S_MAX, beside=self.tasks)

    async def more(self, count: int) -> float:
        confirmed, acked = len(self.history.confirmed) + count, len(self.history.acked) + count
        return await self.until(lambda: len(self.history.confirmed) >= confirmed and len(self.history.acked) >= acked)


def patient(server: PushqServer) -> httpx2.AsyncClient:
    client = http_client(server)
    client.timeout = httpx2.Timeout(SERVICE_S_MAX)
    return client


def leader_of(cluster: Backends, shard: int) -> Backend:
    found: list[Backend] = []

    def one_leads() -> bool:
        found[:] = [one for one in cluster.all if one.is_running and leads(one, shard)]
        return len(found) == 1

    until(one_leads, f"one backend serves shard {shard}")
    return found[0]


def leads(backend: Backend, shard: int) -> bool:
    return any(one["shard"] == shard and one["is_serving"] for one in backend.health().get("shards", []))


def gateway(
    cluster: Backends,
    folder: Path,
    *,
    like: PushqServer | None = None,
    env: dict[str, str] | None = None,
    over: dict[str, str] | None = None,
) -> PushqServer:
    """A gateway of the cluster; the second one has the master key and the admin's key of the first. `over`: in the
    place of the cluster's own settings."""
    folder.mkdir(mode=0o700)
    if like is not None:
        for name in ("master.key", "admin.key"):
            (folder / name).write_bytes((like.data / name).read_bytes())
            (folder / name).chmod(0o600)
    settings = {**(env or {}), **cluster.gateway_env(folder.name), **(over or {})}
    return PushqServer(folder, env=settings).start(ready_s_max=120)


@pytest.mark.parametrize("shard", KILLED.values(), ids=KILLED)
async def test_a_killed_leader_loses_nothing_and_clients_of_both_gateways_go_on(tmp_path: Path, shard: int) -> None:
    cluster = Backends(tmp_path, ROLE, shards=SHARDS)
    gateways: list[PushqServer] = []
    await anyio.to_thread.run_sync(cluster.__enter__)
    try:
        gateways.append(await anyio.to_thread.run_sync(lambda: gateway(cluster, tmp_path / "g0")))
        gateways.append(await anyio.to_thread.run_sync(lambda: gateway(cluster, tmp_path / "g1", like=gateways[0])))
        loads = [Load(gateways, f"load{number}") for number in range(SHARDS)]
        async with patient(gateways[0]) as http:
            for load in loads:  # one comes to each shard
                await call(http, "PUT", load.queue, {"visibility_timeout_ms": VISIBILITY_MS})
        async with AsyncExitStack() as running:
            for load in loads:
                await running.enter_async_context(load.running())
            await more(loads, MESSAGES_BETWEEN)
            await anyio.to_thread.run_sync(cluster.all_in_sync)
            leader = await anyio.to_thread.run_sync(leader_of, cluster, shard)
            await anyio.to_thread.run_sync(leader.end, signal.SIGKILL)
            print(f"shard {shard} killed: all confirmed and acked again after {await more(loads, 1):.1f} s")
            await more(loads, MESSAGES_BETWEEN)
            await anyio.to_thread.run_sync(leader.start)
            await more(loads, MESSAGES_BETWEEN)
        assert not (broken := "\n".join(filter(None, (load.broken() for load in loads)))), broken
    finally:
        for one in gateways:
            one.kill()
        await anyio.to_thread.run_sync(lambda: cluster.__exit__(None, None, None))


async def more(loads: list[Load], count: int) -> float:
    """How long it took until every queue had so many more, in seconds."""
    return max(await asyncio.gather(*(load.more(count) for load in loads)))
