"""Creates the small data folder of this version of the stored formats: `python -m tests.support.old_data DIR`.

Run it once per format version. The folder stays in `tests/data` for good, and every later version must open it and find
what `tests/contracts/test_stored_formats.py` expects. It has every kind of row. The clock stands still, except for
steps that need time to pass.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backend_store.client import KIND_BYTES, Draft
from backend_store.client.embedded import EmbeddedQueue, EmbeddedStore
from backend_store.client.groups import open_group, put_group
from backend_store.core.dedupe.dedupe import Bounds
from backend_store.core.leases.leases import Lease
from backend_store.core.leases.session_snapshot import KeptSession
from backend_store.core.ready import key_queues
from backend_store.model import ApiKey, Stamp
from backend_store.node.node import Node
from backend_store.node.publishing.known_ids import IdStore
from backend_store.node.views.group import Mode
from backend_store.storage.backup import backup
from backend_store.storage.engine import Batch, Table
from backend_store.storage.env import open_engine
from backend_store.storage.keys import log_key
from tests.support.environment import SMALL_FOLDER
from tests.support.patience import eventually
from tests.support.queues import draft
from tests.support.stores import asked, died, made, published, receipts
from tests.support.world import Consumer

MADE_MS = 1_790_000_000_000
OPENED_MS = MADE_MS + 200_000
"""A time by which everything due is done, and everything meant to wait still waits."""
HOUR_MS = 3_600_000
FULL = Draft(
    KIND_BYTES,
    b"\x00bytes\xff",
    {
        "id": "mine",
        "key": "k",
        "content_type": "image/png",
        "headers": {"a": "b"},
        "reply_to": "answers",
        "correlation_id": "c",
    },
)


class Maker:
    """A store whose clock advances when told to."""

    def __init__(self, folder: Path):
        self.now_ms = MADE_MS
        self.node = Node(open_engine(folder), directory=folder, space=SMALL_FOLDER, clock_ms=lambda: self.now_ms)
        self.store = EmbeddedStore(self.node)

    async def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        for partition in list(self.node.queues.partitions.values()):
            partition.tick(self.now_ms)
        await self.node.committer.drain()

    async def queue(self, name: str, **settings: Any) -> EmbeddedQueue:
        return await made(self.store, name, **settings)

    async def taken(self, queue: EmbeddedQueue, count: int = 1, *, consumer: Consumer | None = None) -> Lease:
        lease = queue.take(count, consumer or Consumer(), HOUR_MS)
        assert lease is not None, f"{queue.name}: nothing is ready"
        await self.node.committer.drain()
        return lease


async def make(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as work:
        maker = Maker(Path(work))
        await maker.node.start()
        for build in BUILDERS:
            await build(maker)
        held = await maker.taken(maker.store.queue("default", "plain"))
        session = KeptSession("session-1", "k1", {"default/plain": [held.token]})
        await maker.store.close([session])
        # A copy without the free pages: tests need only little.
        with tempfile.TemporaryDirectory() as copy:
            backup(Path(work), Path(copy) / "copy")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "data.mdb").write_bytes((Path(copy) / "copy" / "data.mdb").read_bytes())


async def identities(maker: Maker) -> None:
    metadata = maker.store.metadata
    await metadata.put_key(ApiKey("k1", "old", "default", ("consume:*",), b"\x01" * 32, MADE_MS))
    await metadata.put_tenant("other", MADE_MS)


async def plain(maker: Maker) -> None:
    """Priorities; settled, delayed, retried and held messages."""
    queue = await maker.queue("plain", priorities=3, tags={"a": "b"})
    await published(queue, draft("settled"), draft("tried"), FULL, draft('"ünïcode"'))
    await published(queue, draft("delayed", priority=2), draft("held", priority=1))
    delayed = receipts(await maker.taken(queue))
    await asked(lambda reply: queue.give_back(delayed, 100 * HOUR_MS, reply, "not now"))
    await maker.taken(queue)
    settled, tried = receipts(await maker.taken(queue, 2))
    await asked(lambda reply: queue.settle([settled], reply))
    await asked(lambda reply: queue.give_back([tried], 0, reply, "no stock"))


async def times(maker: Maker) -> None:
    """Scheduled and expiring messages."""
    queue = await maker.queue("times")
    soon, late = maker.now_ms + HOUR_MS, maker.now_ms + 2 * HOUR_MS
    await published(queue, draft("soon", due_ms=soon, id="soon"), draft("late", due_ms=late, id="late"))
    await published(queue, draft("fleeting", expires_ms=maker.now_ms + HOUR_MS // 2), draft("lasting"))


async def ends(maker: Maker) -> None:
    """Dead letters at home, and on their way to a full queue."""
    full = await maker.queue("full", max_messages=1)
    await published(full, draft("in the way"))
    await died(await maker.queue("mortal", max_attempts=1), draft("dead", id="d1"))
    await died(await maker.queue("exporting", max_attempts=1, dead_letter_queue="full"), draft("on its way"))


async def orders(maker: Maker) -> None:
    """Sorting queues with released, waiting and late messages."""
    numbered = await maker.queue("numbered", sequencing="producer", sort_window_ms=120_000)
    for number in (1, 2, 5):
        await published(numbered, draft(str(number), stamp=Stamp(0, "p", number)))
    await maker.pass_time(120_000)
    await published(numbered, draft("4, late", stamp=Stamp(0, "p", 4)), draft("8", stamp=Stamp(0, "p", 8)))
    clocked = await maker.queue("clocked", sequencing="clock", late_messages="head", sort_window_ms=600_000)
    await published(clocked, *(draft(name, stamp=_stamp(maker, age)) for name, age in (("b", 601_000), ("a", 602_000))))
    await published(clocked, draft("late", stamp=_stamp(maker, 603_000)), draft("waits", stamp=_stamp(maker, 0)))
    await maker.node.committer.drain()


def _stamp(maker: Maker, age_ms: int) -> Stamp:
    return Stamp((maker.now_ms - age_ms) * 1000, "p", 0)


async def ids(maker: Maker) -> None:
    """Ids in runs, and single ones."""
    queue = await maker.queue("ids", dedupe="id", dedupe_window_ms=14 * 24 * HOUR_MS)
    partition = queue._partition
    bounds = Bounds(recent_ids_max=64, arrival_row_ids_min=16, step_ids=64, take_ids_min=16)
    partition._ids = IdStore(maker.node.engine, partition.replica, bounds)
    for first in range(0, 200, 20):
        await published(queue, *(draft(str(n), id=f"id-{n}") for n in range(first, first + 20)))
    await queue.purge("p2")


async def strict(maker: Maker) -> None:
    """Stored leases, and messages on disk that wait behind a locked key."""
    queue = await maker.queue("strict", ordering="strict", lease_mode="replicated")
    await published(queue, draft("a1", key="a"))
    await maker.taken(queue)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_queues, "KEYED_RUNS_IN_MEMORY_MAX", 2)
        for number in range(2, 6):
            await published(queue, draft(f"a{number}", key="a"))
            assert queue.take(1, Consumer(), HOUR_MS) is None
            await maker.pass_time(2_000)


async def stream(maker: Maker) -> None:
    queue = await maker.queue("stream", kind="stream")
    for number in range(6):
        await published(queue, draft(str(number)), draft(f"{number}b"))
    await _group(maker, queue, "readers", "offsets")
    await _group(maker, queue, "workers", "leases")


async def _group(maker: Maker, stream: EmbeddedQueue, name: str, mode: Mode) -> None:
    """A group that has finished the first chunk and half of the second, and holds the other half and the third."""
    await asked(lambda reply: put_group(stream, name, "earliest", mode, reply))
    group = await asked(lambda reply: open_group(stream, name, None, reply))
    consumer = Consumer()
    given = [text for _ in range(3) for text in receipts(await maker.taken(group, 2, consumer=consumer))]
    await asked(lambda reply: group.settle(given[:3], reply))


async def partitions(maker: Maker) -> None:
    """A queue that grew from two to three partitions: slots have moved, and their ids stayed behind."""
    queue = await maker.queue("split", partitions=2, ordering="strict", dedupe="id", dedupe_window_ms=HOUR_MS)
    await published(queue, *(draft(f"{n}", key=f"k{n}", id=f"s{n}") for n in range(16)))
    config = msgspec.structs.replace(queue.config, partitions=3)
    assert await maker.store.update_queue("default", "split", config, queue.definition.version) is not None
    await eventually(lambda: len(queue._partitions.all) == 3 and not queue._partitions.map.table.moves)  # type: ignore[union-attr]
    await published(queue, *(draft(f"{n}", key=f"k{n}", id=f"s{n}") for n in range(16, 32)))


async def leaving(maker: Maker) -> None:
    """A deleted queue whose messages wait for their target queue, and one that is gone."""
    for name, target, bodies in (("left", "full", ("left",)), ("gone", "plain", ())):
        queue = await maker.queue(name)
        if bodies:
            await published(queue, *map(draft, bodies))
        await maker.store.move_queue("default", name, target)
    await eventually(lambda: any(moved.is_empty for moved in maker.store.metadata.moved.values()))


async def damage(maker: Maker) -> None:
    """An entry that failed verification, and was put aside."""
    queue = await maker.queue("damaged")
    await published(queue, draft("broken"))
    await published(queue, draft("whole"))
    key, batch = log_key(queue.definition.uid, 0), Batch()
    data = maker.node.engine.get(Table.LOG, key)
    assert data is not None
    batch.put(Table.LOG, key, data[:-1] + bytes([data[-1] ^ 1]))
    await maker.node.committer.write(batch)
    assert queue._partition.read(0) is not None
    await eventually(lambda: queue.stats().ready == 1)


async def garbage(maker: Maker) -> None:
    """A purge whose rows are not swept yet."""
    for task in maker.node._tasks:
        if task.get_name() == "sweeper":
            task.cancel()
    queue = await maker.queue("purged")
    await published(queue, draft("gone"), draft("gone", due_ms=maker.now_ms + HOUR_MS, id="gone"))
    await queue.purge("p1")
    await published(queue, draft("stays"))


BUILDERS = (identities, plain, times, ends, orders, ids, strict, stream, partitions, leaving, damage, garbage)


if __name__ == "__main__":
    asyncio.run(make(Path(sys.argv[1])))
