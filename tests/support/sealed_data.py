"""Creates the small data folder with encrypted messages of this version: `python -m tests.support.sealed_data DIR`.

Run it once per version of the sealed block or the data key row. The folder stays in `tests/data` for good, with its
master key, and `tests/contracts/test_sealed_format.py` says what every later version must find in it.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from backend_store.client import KIND_BYTES, KIND_JSON, Draft
from backend_store.client.embedded import EmbeddedStore
from backend_store.model import Stamp
from backend_store.node.node import Node, wall_clock_ms
from backend_store.storage.backup import backup
from backend_store.storage.env import open_engine
from gateway.encryption.data_keys import Vault
from gateway.encryption.master_keys import FileMasters, LocalMasters, new_master_text
from tests.support.sealed import sealed_blocks
from tests.support.stores import asked, made, receipts
from tests.support.world import Consumer

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
    stamp=Stamp(7_000_001, "p", 3),
)
PLAIN = Draft(KIND_JSON, b'{"plain":1}', None)


async def opened(folder: Path, masters: LocalMasters) -> tuple[EmbeddedStore, Vault]:
    node = Node(open_engine(folder), directory=None)
    vault = Vault(node.metadata, masters, data_key_days=30, clock_ms=wall_clock_ms)
    await vault.open()
    node.seal_with(vault)
    await node.start()
    return EmbeddedStore(node), vault


async def make(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as work:
        (folder / "master.key").write_text(new_master_text() + "\n")
        store, vault = await opened(Path(work), FileMasters(folder / "master.key"))
        queue = await made(store, "sealed", max_attempts=1)
        await asked(lambda reply: queue.publish(sealed_blocks(queue, FULL, PLAIN), reply))
        lease = queue.take(2, Consumer(), 30_000)
        assert lease is not None
        await asked(lambda reply: queue.give_back(receipts(lease), 0, reply))
        await vault.new_keys([vault.of(queue.definition)])
        await asked(lambda reply: queue.publish(sealed_blocks(queue, PLAIN, FULL), reply))
        await asked(lambda reply: queue.publish(sealed_blocks(queue, *[PLAIN] * 3), reply))
        await store.close()
        backup(Path(work), Path(work) / "copy")
        (Path(work) / "copy" / "data.mdb").rename(folder / "data.mdb")


if __name__ == "__main__":
    asyncio.run(make(Path(sys.argv[1])))
