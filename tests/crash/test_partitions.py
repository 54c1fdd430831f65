"""The server is killed again and again while partitions come and go under load: nothing that it confirmed is lost,
nothing is there twice, and every key keeps its order.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.consumers import call, http_client
from tests.support.keyed_history import KeyedHistory
from tests.support.keyed_load import KeyedLoad, Producer
from tests.support.patience import PATIENCE_S
from tests.support.seeds import AGAIN, IS_EXPLORING, SEED
from tests.support.server import PushqServer

pytestmark = pytest.mark.anyio

ROUNDS = int(os.environ.get("CRASH_PARTITION_ROUNDS", "8" if IS_EXPLORING else "2"))
LOAD_SECONDS = (0.02, 0.8)
KILLED_AT_START = 0.3
START_SECONDS = (0.1, 0.8)
PARTITIONS_MAX = 6
DRAIN_S_MAX = PATIENCE_S
SHOWN = 10
VISIBILITY_MS = 4000
"""Longer than a consumer takes from the receipt of a message to its ack, also where the machine is busy."""
USUAL: dict[str, Any] = {"visibility_timeout_ms": VISIBILITY_MS, "dead_letter_queue": None, "dedupe": "id"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PushqServer]:
    server = PushqServer(tmp_path / "data")
    yield server.start()
    server.kill()


@pytest.mark.parametrize(
    ("config", "delay_ms_max"),
    [({"ordering": "strict"}, 0), ({"ordering": "strict"}, 800), ({"delivery": "exactly_once"}, 0)],
    ids=["strict", "scheduled", "exactly_once"],
)
async def test_no_kill_in_the_middle_of_a_move_loses_doubles_or_reorders_a_message(
    server: PushqServer, capsys: pytest.CaptureFixture[str], config: dict[str, Any], delay_ms_max: int
) -> None:
    rng = random.Random(SEED)
    make_queue(server, USUAL | config)
    history = KeyedHistory(is_ordered=config == {"ordering": "strict"} and not delay_ms_max)
    producers = [Producer(name, 12) for name in ("a", "b", "c")]
    sizes = [await killed_once(server, rng, history, producers, delay_ms_max) for _ in range(ROUNDS)]
    load = KeyedLoad(server, "work", rng, history, delay_ms_max=delay_ms_max)
    stats = await drained(load, producers)
    refuse(history.violations(await load.present()))
    assert delay_ms_max or stats["published_total"] == len(history.places), "something is stored twice"
    assert len(history.settling) == len(history.places) == history.sent.total() > 100 and sum(sizes) >= ROUNDS
    with capsys.disabled():
        print(f"\n{AGAIN}: {ROUNDS} rounds, {sum(sizes)} changes of size, {len(history.places)} messages")


def make_queue(server: PushqServer, config: dict[str, Any]) -> None:
    with httpx2.Client(base_url=server.url, headers=server.headers, trust_env=False) as http:
        http.put("/v1/queues/work", json=config).raise_for_status()


async def killed_once(
    server: PushqServer, rng: random.Random, history: KeyedHistory, producers: list[Producer], delay_ms_max: int
) -> int:
    """One life of the server; how often the queue was told another size in it."""
    load = KeyedLoad(server, "work", rng, history, delay_ms_max=delay_ms_max)
    sizes: list[int] = []
    before = len(history.places)
    await load.run_until_killed(
        rng.uniform(*LOAD_SECONDS),
        load.produce_by_socket(producers[0]),
        load.produce_by_socket(producers[1], binary=True),
        load.produce_by_http(producers[2]),
        load.consume("ws-json"),
        load.consume("ws-msgpack"),
        load.consume("sse"),
        load.consume("poll"),
        resized(server, rng, sizes),
        begun=lambda: sizes and len(history.places) > before,
    )
    if rng.random() < KILLED_AT_START:
        server.launch()
        await asyncio.sleep(rng.uniform(*START_SECONDS))
        server.kill()
    server.start()
    refuse(history.violations(await load.present()))
    return len(sizes)


async def resized(server: PushqServer, rng: random.Random, sizes: list[int]) -> None:
    """Asks for another number of partitions before the last change has arrived, or after it."""
    async with http_client(server) as http:
        while True:
            number, found = rng.randint(1, PARTITIONS_MAX), await http.get("/v1/queues/work")
            if found.status_code == 200:  # a server that has much to do may refuse it
                etag = found.headers["etag"]
                await http.patch("/v1/queues/work", json={"partitions": number}, headers={"If-Match": etag})
                sizes.append(number)
            await asyncio.sleep(rng.uniform(0.02, 0.4))


async def drained(load: KeyedLoad, producers: list[Producer]) -> dict[str, int]:
    """What was not confirmed is sent once more, and all is consumed; then every slot is where it should be. Returns the
    queue's numbers.
    """
    load.stopped = True
    consuming = [asyncio.create_task(load.consume(transport)) for transport in ("ws-json", "sse")]
    deadline = time.monotonic() + DRAIN_S_MAX
    async with http_client(load.server) as http:
        for producer in producers:
            await load.produce_by_http(producer)
        while not is_done(found := await call(http, "GET", "work")):
            assert time.monotonic() < deadline, f"{AGAIN}: it has not come to an end: {found}"
            assert not any(task.done() for task in consuming), "a consumer has left"
            await asyncio.sleep(0.05)
    for task in consuming:
        task.cancel()
    await asyncio.gather(*consuming, return_exceptions=True)
    stats: dict[str, int] = found["stats"]
    return stats


def is_done(queue: dict[str, Any]) -> bool:
    """Whether nothing is left in it, and all slots are where its last change put them."""
    stats, told = queue["stats"], queue.get("partitions", {"open": 1, "slots_moving": 0})
    is_empty = not any(stats[state] for state in ("ready", "in_flight", "delayed", "dead"))
    return is_empty and told["open"] == queue["config"]["partitions"] and not told["slots_moving"]


def refuse(violations: list[str]) -> None:
    shown = "\n".join(violations[:SHOWN])
    assert not violations, f"{AGAIN}: {len(violations)} violations\n{shown}"
