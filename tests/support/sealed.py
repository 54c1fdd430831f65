"""A real in-memory store whose queues are encrypted by a real vault, with a master key that can be unavailable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from backend_store.client import DataKey, Draft, blocks_of
from backend_store.client.embedded import EmbeddedQueue, EmbeddedStore
from backend_store.model import Block, QueueConfig, QueueDefinition, Unavailable
from backend_store.node.node import Node, wall_clock_ms
from backend_store.storage.memory import MemoryEngine
from gateway.encryption.cipher import Counts, QueueSeal
from gateway.encryption.data_keys import Vault
from gateway.encryption.master_keys import Context, LocalMasters, Masters, Wrapped
from tests.support.stores import _fail

MASTER = b"m" * 32


class FlakyMasters(LocalMasters):
    """In-memory master keys that are unavailable while `away`."""

    def __init__(self, *keys: bytes):
        super().__init__(keys or (MASTER,), "memory")
        self.is_away = False
        self.asked = 0

    async def wrap(self, keys: Sequence[tuple[Context, bytes]]) -> list[Wrapped]:
        self._answer()
        return await super().wrap(keys)

    async def unwrap(self, keys: Sequence[DataKey]) -> list[bytes]:
        self._answer()
        return await super().unwrap(keys)

    def _answer(self) -> None:
        self.asked += 1
        if self.is_away:
            raise Unavailable("the master key is unavailable")


class Sealed(NamedTuple):
    store: EmbeddedStore
    vault: Vault
    engine: MemoryEngine


async def opened_sealed(
    engine: MemoryEngine | None = None, masters: Masters | None = None, *, days: int = 30
) -> Sealed:
    engine = engine or MemoryEngine()
    node = Node(engine, directory=None, on_fatal=_fail)
    vault = Vault(node.metadata, masters or FlakyMasters(), data_key_days=days, clock_ms=wall_clock_ms)
    await vault.open()
    node.seal_with(vault)
    await node.start()
    await vault.ready([one for one in node.metadata.queues.values() if one.config.encrypted])
    return Sealed(EmbeddedStore(node), vault, engine)


async def sealed_again(sealed: Sealed, masters: Masters | None = None) -> Sealed:
    """The store after a clean stop and restart."""
    await sealed.store.close()
    return await opened_sealed(sealed.engine.crash(), masters)


def a_definition(uid: int = 1, tenant: str = "default", name: str = "q") -> QueueDefinition:
    return QueueDefinition(uid=uid, tenant=tenant, name=name, config=QueueConfig(), created_at_ms=0, version=1)


def a_seal(definition: QueueDefinition | None = None) -> QueueSeal:
    """A queue's seal that has no key yet."""
    return QueueSeal(definition or a_definition(), Counts(), lambda seal: None)


def sealed_blocks(queue: EmbeddedQueue, *drafts: Draft) -> list[Block]:
    return queue.sealed(blocks_of(drafts).blocks)
