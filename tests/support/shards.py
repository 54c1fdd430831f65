"""Clusters of backends in this process: real folders, real sockets, and a shared embedded coordinator."""

from __future__ import annotations

from collections.abc import Awaitable
from pathlib import Path
from types import TracebackType
from typing import Self

from msgspec.structs import replace

from backend_store.cluster.coordinator import Coordinator
from backend_store.cluster.core.values import Operation, Transaction
from backend_store.cluster.embedded_host import EmbeddedHost
from backend_store.core.replication.record import Mode, NodeId
from backend_store.core.replication.settings import Settings
from backend_store.node.node import Node
from backend_store.shard.host import BackendHost, HostConfig, open_host
from backend_store.shard.hosted import HostedShard
from backend_store.shard.interface import ShardNumber
from backend_store.shard.manager import Rules
from backend_store.shard.rounds import Patience
from backend_store.storage.engine import Batch, Table
from backend_store.wire.tls import BothSides, mutual_tls
from tests.support.coordinators import open_folder
from tests.support.patience import eventually
from tests.support.tls import Authority

NAMES = ("a", "b", "c")
PEER_LEASE_MS = 300
"""Instead of the two seconds that a new leader waits: this coordinator always responds."""
NO_MOVES = Patience(replace_after_s=0, rebalance_after_s=0)


def tls_of(authority: Authority, name: str, *, trusted: Authority | None = None) -> BothSides:
    """`trusted`: the authority it trusts, if not the one that signed its own certificate."""
    pair, ca = authority.issue(name), (trusted or authority).certificate
    return BothSides(
        mutual_tls(pair.certificate, pair.key, ca, is_server=True),
        mutual_tls(pair.certificate, pair.key, ca, is_server=False),
    )


class Cluster:
    """Three backends; `kill` ends one abruptly."""

    def __init__(
        self,
        folder: Path,
        *,
        shards: int = 1,
        lanes: int = 0,
        mode: Mode = "sync",
        settings: Settings | None = None,
        min_in_sync: int = 2,
        patience: Patience = NO_MOVES,
        move_bytes_per_s: int = 0,
        home_s: float = 3600,
        scrub_every_s: float = 3600,
    ) -> None:
        self.folder = folder
        self.hosts: dict[str, BackendHost] = {}
        self._shards, self._mode, self._min = shards, mode, min_in_sync
        self._lanes = lanes
        self._settings = replace(settings or Settings(), peer_lease_ms=PEER_LEASE_MS)
        self._patience, self._move_bytes_per_s, self._home_s = patience, move_bytes_per_s, home_s
        self._scrub_every_s = scrub_every_s
        self._authority = Authority(folder / "ca")
        self._coordinator: EmbeddedHost | None = None

    async def __aenter__(self) -> Self:
        self._coordinator = open_folder(self.folder / "coordinator")
        for name in NAMES:
            await self.start(name)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        for name in list(self.hosts):
            await self.stop(name)
        assert self._coordinator is not None
        await self._coordinator.close()

    @property
    def coordinator(self) -> Coordinator:
        assert self._coordinator is not None
        return self._coordinator.coordinator

    async def start(self, name: str) -> BackendHost:
        assert self._coordinator is not None
        config = HostConfig(
            NodeId(name),
            self.folder / name,
            "127.0.0.1:0",
            zone=f"zone-{name}",
            service=f"{name}:1",
            tls=tls_of(self._authority, name),
            rules=Rules(self._shards, 3, self._min, self._mode, self._patience, self._lanes),
            move_bytes_per_s=self._move_bytes_per_s,
            scrub_every_s=self._scrub_every_s,
            session_s=2,
            home_s=self._home_s,
            settings=self._settings,
        )
        host = self.hosts[name] = await open_host(config, self._coordinator.coordinator)
        return host

    async def change(self, *operations: Operation) -> None:
        """Changes records at the coordinator, as an operator would."""
        assert self._coordinator is not None
        await self._coordinator.coordinator.transact(Transaction(then=operations))

    async def stop(self, name: str) -> None:
        await self.hosts.pop(name).close()

    def serving(self, number: int = 0) -> HostedShard | None:
        found = [host.shards.get(ShardNumber(number)) for host in self.hosts.values()]
        serving = [shard for shard in found if shard is not None and shard.is_serving]
        assert len(serving) <= 1, "two backends serve the shard"
        return serving[0] if serving else None

    async def leader(self, number: int = 0) -> tuple[str, HostedShard]:
        await eventually(lambda: self.serving(number) is not None, f"somebody serves shard {number}")
        shard = self.serving(number)
        assert shard is not None
        return next(name for name, host in self.hosts.items() if shard in host.shards.values()), shard

    async def in_sync(self, count: int, number: int = 0) -> None:
        def is_so() -> bool:
            shard = self.serving(number)
            record = None if shard is None else shard.replicated.replica.record
            return record is not None and len(record.isr) >= count

        await eventually(is_so, f"{count} are in sync")


def node_of(shard: HostedShard) -> Node:
    node = shard.node
    assert node is not None
    return node


def put(node: Node, key: str, value: str) -> Awaitable[None]:
    batch = Batch()
    batch.put(Table.META, f"test/{key}".encode(), value.encode())
    return node.committer.write(batch)


def rows(shard: HostedShard) -> dict[str, str]:
    """The rows on this replica's disk."""
    found = shard.replicated.store.engine.scan(Table.META, b"test/", b"test0", 10_000)
    return {key.decode().removeprefix("test/"): value.decode() for key, value in found}
