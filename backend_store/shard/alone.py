"""A host with one shard and no replicas: one node on one disk, with the same interface as a backend of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from backend_store.core.replication.record import Incarnation, NodeId
from backend_store.model import Epoch
from backend_store.node.node import Node
from backend_store.shard.interface import OnLeave, Shard, ShardLeader, ShardNumber


class ShardAlone:
    """Leads from `open_alone` until `close`."""

    def __init__(self, node: Node, address: str) -> None:
        self.number = ShardNumber(0)
        self.epoch = Epoch(1)
        self.node: Node | None = node
        self.is_coming = False
        self.leader: ShardLeader | None = ShardLeader(self.number, NodeId("alone"), Incarnation(1), self.epoch, address)


class HostAlone:
    """Made by `open_alone`; the caller closes it."""

    def __init__(self, node: Node, address: str) -> None:
        self._shard = ShardAlone(node, address)
        self._on_lose: list[Callable[[Shard], None]] = []

    @property
    def shards(self) -> Mapping[ShardNumber, Shard]:
        return {self._shard.number: self._shard}

    @property
    def leaders(self) -> Mapping[ShardNumber, ShardLeader]:
        leader = self._shard.leader
        return {} if leader is None else {leader.shard: leader}

    def listen(
        self,
        *,
        on_lead: Callable[[Shard, Node], None],
        on_lose: Callable[[Shard], None],
        on_leave: OnLeave | None = None,
    ) -> None:
        self._on_lose.append(on_lose)
        if self._shard.node is not None:
            on_lead(self._shard, self._shard.node)

    async def close(self) -> None:
        node, self._shard.node, self._shard.leader = self._shard.node, None, None
        if node is not None:
            for on_lose in self._on_lose:
                on_lose(self._shard)
            await node.close()


async def open_alone(directory: Path, *, address: str = "") -> HostAlone:
    """Opens or makes the folder. Raises `storage` errors."""
    from backend_store.storage.env import open_engine

    node = Node(open_engine(directory), directory=directory, is_keyless=True)
    await node.start()
    return HostAlone(node, address)
