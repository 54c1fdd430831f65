"""The server is killed again and again under load: what it confirmed is there, and what was settled stays settled."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.support.history import QueueHistory, StreamHistory, Violation
from tests.support.load import Load
from tests.support.seeds import AGAIN, IS_EXPLORING, SEED
from tests.support.server import PushqServer

pytestmark = pytest.mark.anyio

ROUNDS = int(os.environ.get("CRASH_ROUNDS", "40" if IS_EXPLORING else "4"))
LOAD_SECONDS = (0.05, 0.6)
KILLED_AT_START = 0.2
START_SECONDS = (0.1, 0.6)
ROUNDS_PER_QUEUE = 50
SHOWN = 10


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PushqServer]:
    server = PushqServer(tmp_path / "data")
    yield server.start()
    server.kill()


async def test_nothing_confirmed_is_lost_and_nothing_settled_comes_back(
    server: PushqServer, capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        print(f"\n{ROUNDS} rounds; {AGAIN} repeats the choices")
    rng = random.Random(SEED)
    for first in range(0, ROUNDS, ROUNDS_PER_QUEUE):
        seen = await killed_in_turn(server, rng, range(first, min(ROUNDS, first + ROUNDS_PER_QUEUE)))
        with capsys.disabled():
            print(seen)


async def killed_in_turn(server: PushqServer, rng: random.Random, rounds: range) -> str:
    """Rounds on queues of their own, in the folder that all rounds share."""
    queue, stream = f"work-{rounds.start}", f"log-{rounds.start}"
    make_queues(server, queue, stream)
    work, log = QueueHistory(), StreamHistory()
    cursors: list[str | None] = [None]
    for number in rounds:
        work.life = number
        load = Load(server, rng, queue=queue, stream=stream, work=work, log=log)
        await load.run(
            rng.uniform(*LOAD_SECONDS),
            load.produce(f"a{number}"),
            load.produce(f"b{number}"),
            load.produce_to_stream(f"c{number}"),
            load.consume_by_socket(),
            load.consume_by_socket(),
            load.consume_by_events(),
            load.consume_by_polling(),
            load.read_stream("follower", cursors[-1], cursors.append),
            not_before=lambda: work.acked and log.confirmed,
        )
        if rng.random() < KILLED_AT_START:
            server.launch()
            await asyncio.sleep(rng.uniform(*START_SECONDS))
            server.kill()
        server.start()
        refuse(work.violations(await load.present()), number)
        refuse(log.violations(), number)
    read_to_the_end(server, stream, log)
    refuse(log.violations(whole=["last"]), rounds.stop)
    assert work.acked and log.confirmed
    return f"{len(work.confirmed)} confirmed, {len(work.acked)} acked, {len(log.confirmed)} in the stream"


def make_queues(server: PushqServer, queue: str, stream: str) -> None:
    with httpx2.Client(base_url=server.url, headers=server.headers, trust_env=False) as http:
        # A message may be in somebody's hands in each life: without dead letters it has as many attempts as there are.
        http.put(f"/v1/queues/{queue}", json={"kind": "work", "dead_letter_queue": None}).raise_for_status()
        http.put(f"/v1/queues/{stream}", json={"kind": "stream"}).raise_for_status()


def refuse(violations: list[Violation], number: int) -> None:
    shown = "\n".join(str(v) for v in violations[:SHOWN])
    assert not violations, f"round {number}, {AGAIN}: {len(violations)} violations\n{shown}"


def read_to_the_end(server: PushqServer, stream: str, log: StreamHistory) -> None:
    """A last reader goes through the whole stream."""
    with httpx2.Client(base_url=server.url, headers=server.headers, trust_env=False, timeout=20) as http:
        place: object = "earliest"
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            answer = http.post(f"/v1/queues/{stream}/receive", json={"max": 1000, "from": place}).raise_for_status()
            found = answer.json()
            if not found["messages"]:
                return
            for message in found["messages"]:
                log.read("last", message["seq"], message["body"])
            place = {"cursor": found["cursor"]}
    raise AssertionError("the stream has no end")
