"""Makes the small data folder of version 1 of the stored formats: `python -m tests.support.old_data DIR`.

Run once a format version; the folder stays in `tests/data` for good, and every later version must open it.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from backend_store.client import KIND_BYTES, KIND_JSON, Draft, Lease, Queue, blocks_of, open_store
from backend_store.model import ApiKey, Published, PushqError, QueueConfig

DRAFTS = (
    Draft(KIND_JSON, b'"settled"', None),
    Draft(KIND_JSON, b'{"tried": "twice"}', None),
    Draft(KIND_BYTES, b"\x00bytes\xff", {"id": "mine", "content_type": "image/png"}),
    Draft(KIND_JSON, b"null", {"key": "k", "headers": {"a": "b"}, "reply_to": "answers", "correlation_id": "c"}),
    Draft(KIND_JSON, '"ünïcode"'.encode(), None),
)
TRACE = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"


class Nobody:
    def released(self, count: int) -> None:
        """Holds messages for a moment only."""

    def sendable(self) -> None:
        """Nobody sends."""

    def lost(self, receipts: list[str]) -> None:
        """Never waits that long."""


async def make(folder: Path) -> None:
    store = await open_store(folder)
    await store.metadata.put_key(ApiKey("k1", "old", "default", ("consume:*",), b"\x01" * 32, 1_700_000_000_000))
    work, _ = await store.create_queue("default", "work", QueueConfig(visibility_timeout_ms=60_000, tags={"a": "b"}))
    stream, _ = await store.create_queue("default", "stream", QueueConfig(kind="stream"))
    for queue in (work, stream):
        await _publish(queue)
    first = _take(work, 1)
    await _settle(work, first)
    await _give_back(work, _take(work, 1))
    await _give_back(work, _take(work, 1))
    await store.close()


async def _publish(queue: Queue) -> None:
    done: asyncio.Future[Published | PushqError] = asyncio.get_running_loop().create_future()
    queue.publish(blocks_of(DRAFTS, TRACE).blocks, done.set_result)
    await done


def _take(queue: Queue, count: int) -> Lease:
    lease = queue.take(count, Nobody(), 60_000)
    assert lease is not None
    return lease


async def _settle(queue: Queue, lease: Lease) -> None:
    done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    queue.settle([lease.token + "00"], done.set_result)
    await done


async def _give_back(queue: Queue, lease: Lease) -> None:
    done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    queue.give_back([lease.token + "01"], 0, done.set_result)
    await done


if __name__ == "__main__":
    asyncio.run(make(Path(sys.argv[1])))
