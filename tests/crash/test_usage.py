"""The server is killed again and again under load, also while it writes files: the ledger's files alone prove what
became of every message, and agree with what the clients saw.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from gateway.usage.files import PART, found, read
from tests.support.history import QueueHistory, StreamHistory
from tests.support.load import Load
from tests.support.seeds import AGAIN, IS_EXPLORING, SEED
from tests.support.server import PushqServer
from tests.support.usage import ledger_of

pytestmark = pytest.mark.anyio

KILLS = int(os.environ.get("USAGE_CRASH_ROUNDS", "6" if IS_EXPLORING else "2"))
LOAD_SECONDS = (0.3, 1.6)
"""Files are written once a second: some kills come just then."""
QUEUE, STREAM = "orders", "news"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PushqServer]:
    server = PushqServer(tmp_path / "data", env={"PUSHQ_USAGE__PERIOD_SECONDS": "1"})
    yield server.start()
    server.kill()


async def test_the_files_alone_prove_what_became_of_every_message(server: PushqServer) -> None:
    rng = random.Random(SEED)
    work, log = QueueHistory(), StreamHistory()
    with httpx2.Client(base_url=server.url, headers=server.headers, trust_env=False) as http:
        for name, config in ((QUEUE, {"kind": "work", "max_attempts": 3}), (STREAM, {"kind": "stream"})):
            http.put(f"/v1/queues/{name}", json=config).raise_for_status()
    for number in range(KILLS):
        work.life = number
        load = Load(server, rng, queue=QUEUE, stream=STREAM, work=work, log=log)
        await load.run(
            rng.uniform(*LOAD_SECONDS),
            load.produce(f"a{number}"),
            load.produce_to_stream(f"c{number}"),
            load.consume_by_socket(),
            load.consume_by_polling(),
        )
        server.start()
    present = await load.present()
    stats = stats_of(server)
    server.stop()
    check(server, work, log, present, stats)


def stats_of(server: PushqServer) -> dict[str, dict[str, int]]:
    with httpx2.Client(base_url=server.url, headers=server.headers, trust_env=False) as http:
        return {name: http.get(f"/v1/queues/{name}").raise_for_status().json()["stats"] for name in (QUEUE, STREAM)}


def check(
    server: PushqServer, work: QueueHistory, log: StreamHistory, present: list[str], stats: dict[str, dict[str, int]]
) -> None:
    folder = server.data / "usage"
    counts, held, report = ledger_of(folder, QUEUE)
    assert not report.broken, f"{AGAIN}: {report.broken}"
    assert not list(folder.glob(f"*{PART}"))
    # What was confirmed is among what was published; what was sent and never answered may be.
    assert len(work.confirmed) <= counts["published"] <= len(work.sent) - len(work.refused)
    assert len(work.acked) <= counts["settled"] <= len(work.settling)
    assert counts["published"] - counts["settled"] == held == len(present) + stats[QUEUE]["dead"]
    assert (counts["published"], counts["settled"]) == (stats[QUEUE]["published_total"], stats[QUEUE]["acked_total"])
    counts, held, _ = ledger_of(folder, STREAM)
    assert len(log.confirmed) <= counts["published"] == held <= len(log.sent)
    starts = [row for file in found(folder) if file.kind == "minutes" for row in read(file) if row.operation == "start"]
    assert sum(row.lossy for row in starts) == KILLS and len(starts) == KILLS + 1, "each crash says what it lost"
