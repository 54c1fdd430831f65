"""Independent hosts as their users have them: etcd, four `pushq backend` of which three have a lane, two gateways.

Producers and consumers are at both gateways; one of these knows no other backend than the one without a lane. A host is
killed under the load, its lane is adopted, and it gets it back when it has come back.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio.to_thread
import httpx2
import pytest

from tests.cluster.test_cluster import gateway, leader_of, leads, patient
from tests.support.backends import ROLE, Backends
from tests.support.consumers import Socket, call
from tests.support.keyed_history import KeyedHistory, Name
from tests.support.patience import eventually, until
from tests.support.prerequisites import require
from tests.support.server import PushqServer

pytestmark = pytest.mark.anyio

LANES = 3
KEYS = 4
KILLED = 0
"""The lane whose host is killed: that with the definitions."""
ORDERED = "ordered"
UNORDERED = "unordered"
"""Messages without a key have one order in a queue in strict order, and so one lane: this one is for those."""
CREDIT = 8
SERVICE_S_MAX = 90.0
"""Far above what is promised: these machines are busy, and etcd may take its time."""
ROUND = 20
"""Messages that are confirmed between one event and the next."""
PAUSE_S = 0.1
"""Between two publishes of a producer."""
VISIBILITY_MS = 15_000
HOSTS = {
    "PUSHQ_CLUSTER__MODEL": "independent_hosts",
    "PUSHQ_CLUSTER__LANES": str(LANES),
    "PUSHQ_STORAGE__BALLAST_BYTES": "1048576",
}


@pytest.fixture(autouse=True)
def _needs_etcd() -> None:
    require("etcd")


class Load:
    """Producers of keys and of messages without one at each gateway, and a consumer."""

    def __init__(self, gateways: list[PushqServer]):
        self.history = KeyedHistory()
        self.ids: dict[str, str] = {}
        """Message id → body, of all that were confirmed."""
        self.lanes: Counter[int] = Counter()
        """Where messages without a key went; a test may clear it."""
        self.delivered: set[str] = set()
        self.seen: list[str] = []
        self.confirmed = 0
        self.unkeyed: set[str] = set()
        """Those without a key that were confirmed."""
        self._stopped = False
        self._gateways = gateways

    async def produce_keys(self, name: str, http: httpx2.AsyncClient) -> None:
        """One at a time, and again under the same id until it is confirmed: so the order is the producer's."""
        for number in itertools.count():
            if self._stopped:
                return
            sent = self.history.next(f"{name}-{number % KEYS}")
            message = {"body": str(sent), "key": sent.key, "id": str(sent)}
            while (placed := await self._published(http, ORDERED, message)) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            self.history.confirm(sent, (placed["partition"], placed["seq"]))

    async def produce(self, name: str, http: httpx2.AsyncClient) -> None:
        """Each is tried once: what was not confirmed may be there or not."""
        for number in itertools.count():
            if self._stopped:
                return
            body = f"{name}+{number}"
            if (placed := await self._published(http, UNORDERED, {"body": body})) is None:
                await asyncio.sleep(0.1)
                continue
            self.unkeyed.add(body)
            self.lanes[placed["partition"]] += 1
            if self.ids.setdefault(placed["id"], body) != body:
                self.seen.append(f"{body} has the id {placed['id']} of {self.ids[placed['id']]}")

    async def _published(self, http: httpx2.AsyncClient, queue: str, message: dict[str, Any]) -> dict[str, Any] | None:
        await asyncio.sleep(PAUSE_S)
        answer = await http.post(f"/v1/queues/{queue}/messages", json={"messages": [message]})
        if answer.status_code != 201:
            assert answer.json()["code"] in ("unavailable", "overloaded", "not-durable", "outcome-unknown"), answer.text
            return None
        self.confirmed += 1
        assert answer.json()["durability"]["replicas"] >= 2, answer.text
        placed: dict[str, Any] = answer.json()["messages"][0]
        return placed

    async def consume(self, socket: Socket, queue: str) -> None:
        subscribed = await socket.ask(within_s=SERVICE_S_MAX, type="subscribe", queue=queue, credit=CREDIT)
        assert subscribed["type"] == "ok", subscribed
        while True:
            message = (await socket.frame("message", 3 * SERVICE_S_MAX))["message"]
            body = message["body"]
            key, is_keyed, number = body.partition("#")
            name = Name(key, int(number)) if is_keyed else None
            if name is not None:
                self.history.deliver(name)
                self.history.settle([name])
            elif self.ids.get(message["id"], body) != body:
                self.seen.append(f"{body} came with the id {message['id']} of {self.ids[message['id']]}")
            self.delivered.add(body)
            receipts = [message["receipt"]]
            await socket.ask(within_s=SERVICE_S_MAX, type="ack", queue=queue, receipts=receipts)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        one, two = self._gateways
        async with patient(one) as first, patient(two) as second, AsyncExitStack() as opened:
            producers = [
                asyncio.create_task(work)
                for name, http in (("g0", first), ("g1", second))
                for work in (self.produce_keys(name, http), self.produce(name, http))
            ]
            consumers = [
                asyncio.create_task(self.consume(await opened.enter_async_context(Socket.open(server)), queue))
                for server in self._gateways
                for queue in (ORDERED, UNORDERED)
            ]
            self.tasks = [*producers, *consumers]
            try:
                yield
                self._stopped = True
                await asyncio.gather(*producers)
                await self._empty(first)
            finally:
                for task in self.tasks:
                    task.cancel()
                await asyncio.gather(*self.tasks, return_exceptions=True)

    async def _empty(self, http: httpx2.AsyncClient) -> None:
        async with asyncio.timeout(SERVICE_S_MAX):
            for queue in (ORDERED, UNORDERED):
                while True:
                    stats = (await call(http, "GET", queue))["stats"]
                    if stats["ready"] + stats["in_flight"] + stats["delayed"] == 0:
                        break
                    await asyncio.sleep(0.2)

    async def until(self, is_so: Callable[[], bool]) -> float:
        return await eventually(is_so, within_s=SERVICE_S_MAX, beside=self.tasks)

    async def more(self) -> float:
        confirmed, delivered = self.confirmed + ROUND, len(self.delivered) + ROUND
        return await self.until(lambda: self.confirmed >= confirmed and len(self.delivered) >= delivered)

    async def goes_to(self, *lanes: int) -> float:
        """Until messages without a key have gone to all of these."""
        self.lanes.clear()
        return await self.until(lambda: all(self.lanes[lane] for lane in lanes))

    def broken(self) -> list[str]:
        lost = sorted(self.unkeyed - self.delivered)
        return [*self.history.violations(()), *self.seen, *(f"{body} was confirmed and never came" for body in lost)]


async def test_a_gateway_publishes_to_the_host_in_its_zone_while_that_is_there(tmp_path: Path) -> None:
    with Backends(tmp_path, ROLE, names="abc", env=HOSTS) as cluster:
        until(lambda: len({leader_of(cluster, lane).name for lane in range(LANES)}) == LANES, "each host has its lane")
        near = leader_of(cluster, 1)
        server = gateway(cluster, tmp_path / "g0", env={"PUSHQ_NODE__ZONE": f"zone-{near.name}"})
        try:
            async with patient(server) as http:
                await call(http, "PUT", UNORDERED, {})

                async def lanes() -> set[int]:
                    path, messages = f"/v1/queues/{UNORDERED}/messages", {"messages": [{"body": 1}]}
                    told = [await http.post(path, json=messages) for _ in range(ROUND)]
                    # Of what was on its way to the host that is killed nobody knows.
                    assert {answer.status_code for answer in told} <= {201, 504}, told
                    taken = [answer.json()["messages"] for answer in told if answer.is_success]
                    return {one["partition"] for messages in taken for one in messages}

                async def are_near() -> bool:
                    return await lanes() == {1}

                async def are_elsewhere() -> bool:
                    return await lanes() == {0, 2}

                await eventually(are_near, "its doors are open")
                near.end(signal.SIGKILL)
                await eventually(are_elsewhere, "the others take them", within_s=SERVICE_S_MAX)
                near.start()
                await eventually(are_near, "it is back", within_s=SERVICE_S_MAX)
        finally:
            server.kill()


async def test_a_killed_host_loses_nothing_and_gets_its_lane_back(tmp_path: Path) -> None:
    cluster = Backends(tmp_path, ROLE, names="abcd", env=HOSTS)
    gateways: list[PushqServer] = []
    await anyio.to_thread.run_sync(cluster.__enter__)
    try:
        owners = [await anyio.to_thread.run_sync(leader_of, cluster, lane) for lane in range(LANES)]
        assert len({one.name for one in owners}) == LANES
        [idle] = [one for one in cluster.all if one not in owners]
        watches = {"PUSHQ_CLUSTER__COORDINATOR": cluster.coordinator}
        gateways.append(await anyio.to_thread.run_sync(lambda: gateway(cluster, tmp_path / "g0", env=watches)))
        alone = {"PUSHQ_STORE__BACKENDS": idle.service}
        gateways.append(
            await anyio.to_thread.run_sync(lambda: gateway(cluster, tmp_path / "g1", like=gateways[0], over=alone))
        )
        load = Load(gateways)
        async with patient(gateways[0]) as http:
            config = {"visibility_timeout_ms": VISIBILITY_MS}
            await call(http, "PUT", ORDERED, {**config, "ordering": "strict", "dedupe": "id"})
            await call(http, "PUT", UNORDERED, config)
            known = {"if-match": (await http.get(f"/v1/queues/{UNORDERED}")).headers["etag"]}
            refused = await http.patch(f"/v1/queues/{UNORDERED}", json={"max_messages": 10}, headers=known)
            assert refused.status_code == 400, refused.text
            assert [one["pointer"] for one in refused.json()["errors"]] == ["/max_messages"]
            refused = await http.post("/v1/cluster/rebalance", json={"dry_run": True})
            assert refused.status_code == 409, refused.text
        async with load.running():
            await load.more()
            await load.goes_to(*range(LANES))
            victim = owners[KILLED]
            await anyio.to_thread.run_sync(victim.end, signal.SIGKILL)
            began = time.monotonic()
            await anyio.to_thread.run_sync(
                until, lambda: any(leads(one, KILLED) for one in cluster.all if one.is_running), "the lane is adopted"
            )
            print(f"lane {KILLED} adopted after {time.monotonic() - began:.1f} s")
            await load.more()
            await anyio.to_thread.run_sync(victim.start)
            began = time.monotonic()
            await anyio.to_thread.run_sync(until, lambda: leads(victim, KILLED), "its lane is its own again")
            print(f"lane {KILLED} at home again {time.monotonic() - began:.1f} s after its host came back")
            await load.goes_to(*range(LANES))
            await load.more()
        assert not (broken := load.broken()), "\n".join(broken[:20])
        print(f"{load.confirmed} confirmed, of them {len(load.unkeyed)} without a key")
    finally:
        for one in gateways:
            one.kill()
        await anyio.to_thread.run_sync(lambda: cluster.__exit__(None, None, None))
