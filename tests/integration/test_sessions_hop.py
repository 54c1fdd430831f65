"""Consumers that are cut and come back to either of two gateways, again and again, while messages are published."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import anyio
import httpx2
import pytest

from tests.support.backend import Backend
from tests.support.patience import PATIENCE_S
from tests.support.server import PushqServer
from tests.support.ws import Client, create_queue

pytestmark = pytest.mark.anyio

MESSAGES, BATCH, CONSUMERS = 600, 20, 6
VISIBILITY_MS = 3_000
"""What was on its way when a connection was cut comes again after this."""


@pytest.fixture(scope="module")
def gateways(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[PushqServer]]:
    with ExitStack() as stack:
        backend = stack.enter_context(Backend(tmp_path_factory.mktemp("backend")))
        first = stack.enter_context(PushqServer(tmp_path_factory.mktemp("first") / "data", env=backend.gateway_env))
        data: Path = tmp_path_factory.mktemp("second") / "data"
        data.mkdir(mode=0o700)
        for name in ("master.key", "admin.key"):
            (data / name).write_bytes((first.data / name).read_bytes())
            (data / name).chmod(0o600)
        yield [first, stack.enter_context(PushqServer(data, env=backend.gateway_env))]


class Consumers:
    """What all of them got and acked."""

    def __init__(self, gateways: list[PushqServer], queue: str, seed: int) -> None:
        self.gateways = gateways
        self.queue = queue
        self.chance = random.Random(seed)
        self.got: Counter[int] = Counter()
        self.acked: Counter[int] = Counter()
        self.stale: list[int] = []
        self.hops = self.resumed = 0

    @property
    def is_done(self) -> bool:
        return len(self.acked) == MESSAGES

    async def consume(self) -> None:
        session: str | None = None
        held: dict[int, str] = {}
        while not self.is_done:
            async with Client(self.chance.choice(self.gateways), resume=session) as client:
                if session is not None:
                    self.hops += 1
                    self.resumed += client.connected["resumed"]
                session = client.session
                await client.subscribe(self.queue, credit=10)
                await self._acks(client, held)
                for _ in range(self.chance.randint(1, 6)):
                    with anyio.move_on_after(0.3):
                        for message in (await client.next("deliver"))["messages"]:
                            self.got[message["body"]] += 1
                            held[message["body"]] = message["receipt"]
                    if self.chance.random() < 0.7:
                        await self._acks(client, held)
                await client.cut()

    async def _acks(self, client: Client, held: dict[int, str]) -> None:
        if not held:
            return
        bodies = list(held)
        answer = await client.ask(type="ack", queue=self.queue, receipts=[held.pop(body) for body in bodies])
        for body, row in zip(bodies, answer["results"], strict=True):
            if row["ok"]:
                self.acked[body] += 1
            else:
                self.stale.append(body)


@pytest.mark.parametrize(("ordering", "seed"), [("best_effort", 1), ("strict", 2)])
async def test_every_message_is_acked_once_and_what_a_client_has_does_not_come_again(
    gateways: list[PushqServer], ordering: str, seed: int
) -> None:
    queue = f"hop-{ordering.replace('_', '-')}"
    create_queue(gateways[0], queue, ordering=ordering, visibility_timeout_ms=VISIBILITY_MS)
    consumers = Consumers(gateways, queue, seed)
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as group, httpx2.AsyncClient(headers=gateways[0].headers) as http:
            for _ in range(CONSUMERS):
                group.start_soon(consumers.consume)
            for first in range(0, MESSAGES, BATCH):
                rows = [{"body": n, "key": f"k{n % 50}"} for n in range(first, first + BATCH)]
                url = f"{gateways[first // BATCH % 2].url}/v1/queues/{queue}/messages"
                (await http.post(url, json={"messages": rows})).raise_for_status()
                await anyio.sleep(0.02)
    assert consumers.hops > 20 and consumers.resumed == consumers.hops, "each session went on, wherever it was"
    assert set(consumers.acked.values()) == {1} and not consumers.stale
    assert set(consumers.got.values()) == {1}, "what a client has is not delivered again"
