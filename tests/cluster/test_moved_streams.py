"""A stream moves to another cluster while it is written and read, and a part of either is killed in its midst."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.test_cluster import patient
from tests.cluster.test_moves import kill_backend, opened, run
from tests.cluster.test_several_clusters import HOSTS, PAIR
from tests.support.consumers import Server, Socket, call
from tests.support.keyed_history import KeyedHistory, Name
from tests.support.patience import PATIENCE_S, eventually
from tests.support.prerequisites import require
from tests.support.stubborn_load import BATCH, StubbornLoad

pytestmark = pytest.mark.anyio

MORE = 60
HEARD_S = 10.0
"""So often a reader says that it is there."""
CONFIG = {"kind": "stream", "partitions": 2, "dedupe": "id", "visibility_timeout_ms": 30_000}


@pytest.fixture(autouse=True)
def _needs_etcd() -> None:
    require("etcd")


class StreamLoad(StubbornLoad):
    """A producer at each gateway; a reader at the first, and of each group a consumer at each."""

    def __init__(self, servers: list[Server], queue: str) -> None:
        super().__init__([one.url for one in servers], servers[0].headers, queue)
        self._server = servers[0]
        self.reader = self._history(is_ordered=True)
        self.history.settling = self.reader.settling
        self.groups = {mode: self._history(is_ordered=mode == "offsets") for mode in ("offsets", "leases")}

    def _history(self, *, is_ordered: bool) -> KeyedHistory:
        return KeyedHistory(is_ordered=is_ordered, sent=self.history.sent, places=self.history.places)

    @property
    def _histories(self) -> list[KeyedHistory]:
        return [self.reader, *self.groups.values()]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """At its end all that was sent is confirmed, and everybody has had all of it."""
        async with asyncio.TaskGroup() as tasks, Socket.open(self._server) as socket:
            asked: Any = {"from": "earliest"}
            told = await socket.ask(type="subscribe", queue=self.queue, **asked)
            assert told["type"] == "ok", told
            producers = [tasks.create_task(self._produce(f"p{n}", url)) for n, url in enumerate(self._urls)]
            readers = [tasks.create_task(self._read(socket)), tasks.create_task(_is_heard(socket))]
            readers += [tasks.create_task(self._take(url, mode)) for mode in self.groups for url in self._urls]
            self._tasks = [*producers, *readers]
            yield
            self._stopped = True
            await asyncio.gather(*producers)
            await self._until(self._have_all, self._missing)
            for one in readers:
                one.cancel()

    async def more(self, count: int) -> float:
        confirmed = len(self.history.places) + count
        had = [len(one.settling) + count for one in self._histories]

        def are_through() -> bool:
            came = zip(self._histories, had, strict=True)
            return len(self.history.places) >= confirmed and all(len(one.settling) >= n for one, n in came)

        return await self._until(are_through, self._missing)

    def violations(self) -> list[str]:
        return [each for one in (self.history, *self._histories) for each in one.seen]

    def _have_all(self) -> bool:
        return all(self.history.places.keys() <= one.settling for one in self._histories)

    def _missing(self) -> str:
        left = [len(self.history.places.keys() - one.settling) for one in self._histories]
        return f"{len(self.history.places)} confirmed; reader, offsets and leases lack {left}"

    async def _read(self, socket: Socket) -> None:
        """Without a group nothing comes twice."""
        while True:
            frame = await socket.inbox.get()
            assert frame["type"] == "message", frame
            name = Name(*frame["message"]["body"])
            self.reader.deliver(name)
            self.reader.settle([name])
            self.reader.ack([name])

    async def _take(self, url: str, mode: str) -> None:
        history = self.groups[mode]
        async with self._client(url) as http:
            while True:
                asked = {"max": BATCH, "wait_ms": 500, "group": mode}
                answer = await self._insist(http, "receive", asked)
                assert not answer.get("gaps"), answer
                came = {one["receipt"]: Name(*one["body"]) for one in answer["messages"]}
                for name in came.values():
                    history.deliver(name)
                if came:
                    verdicts = (await self._insist(http, "ack", {"receipts": list(came)}))["results"]
                    settled = [name for name, one in zip(came.values(), verdicts, strict=True) if one["ok"]]
                    history.ack(settled)
                    history.settle(settled)


async def _is_heard(socket: Socket) -> None:
    while True:
        await asyncio.sleep(HEARD_S)
        await socket.send({"type": "pong"})


@pytest.mark.parametrize("killed", ["source", "target", "gateway"])
@pytest.mark.parametrize("model", ["to hosts", "from hosts"])
async def test_a_stream_that_moves_loses_doubles_and_reorders_nothing(tmp_path: Path, model: str, killed: str) -> None:
    home, further = {"to hosts": (PAIR, HOSTS), "from hosts": (HOSTS, PAIR)}[model]
    async with opened(tmp_path, home, further) as world:
        one, other = world.gateways
        async with patient(one) as http:
            queue = ""
            for number in range(20):
                queue = f"s{number:02}"
                if (await call(http, "PUT", queue, CONFIG))["cluster"] == "us":
                    break
            for mode in ("offsets", "leases"):
                await call(http, "PUT", f"{queue}/groups/{mode}", {"mode": mode, "position": "earliest"})
            load = StreamLoad([one, other], queue)
            async with load.running():
                await load.more(MORE)
                await world.move(http, queue, "eu")
                if killed == "gateway":
                    await run(other.kill)
                    await run(other.start)
                else:
                    again = await kill_backend(world.us if killed == "source" else world.eu)
                    await again()
                await world.arrived(http)
                await load.more(MORE)
            assert load.violations() == []
            seqs = sorted(seq for _, seq in load.history.places.values())
            assert seqs[0] < 2**32 < seqs[-1], "some were confirmed before the move, and some after it"
            assert (await call(http, "GET", queue))["cluster"] == "eu"

            async def is_through() -> bool:
                groups = (await call(http, "GET", f"{queue}/groups"))["items"]
                return {group["name"]: sum(one["lag"] for one in group["lag"]) for group in groups} == {
                    "offsets": 0,
                    "leases": 0,
                }

            await eventually(is_through, "no group lacks anything", within_s=PATIENCE_S)
