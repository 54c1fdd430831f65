"""Two clusters of one backend each in this process, over real sockets, with managers that check them on demand."""

from __future__ import annotations

import asyncio

from backend_store.client.embedded import EmbeddedStore
from backend_store.core.outer import records
from backend_store.core.outer.clusters import Cluster
from backend_store.core.outer.managing import ProvisionCall, Rules
from backend_store.node.meter import Load
from backend_store.node.node import Node
from backend_store.outer.manager import Manager, ProvisionFailed, hold_ms
from backend_store.remote.definitions.directory import FixedDirectory
from backend_store.remote.store import ClusterAt, RemoteBackends
from backend_store.service.serving import StoreServer, StoreService
from backend_store.storage.memory import MemoryEngine
from push.delivery.lookup_retry import LookingUp
from tests.support.patience import eventually

EVERY_S = 1.0
AT_ONCE = Rules(nodes_min=1, grow_after_ms=0, pause_ms=0, has_provisioner=True)


class Provider:
    """A provisioner that takes as long as the test wants."""

    def __init__(self) -> None:
        self.calls: list[ProvisionCall] = []
        self.goes_on = asyncio.Event()
        self.fails = False

    async def __call__(self, call: ProvisionCall) -> str:
        self.calls.append(call)
        await self.goes_on.wait()
        if self.fails:
            raise ProvisionFailed("no server is left")
        return "two servers are on their way"


class OuterWorld:
    """Two clusters of one backend each, as full as the test says; the clock of duties stands still until advanced."""

    def __init__(self) -> None:
        self.loads = {"main": Load("a", cpu=0.1), "us": Load("x", cpu=0.1)}
        self.now_ms = 1_000_000
        self.backends: list[EmbeddedStore] = []
        self.stores: list[RemoteBackends] = []
        self.managers: list[Manager] = []
        self.provider = Provider()
        self._services: list[StoreService] = []
        self._servers: list[StoreServer] = []
        self._ports: list[int] = []

    async def open(self) -> None:
        for name in self.loads:
            node = Node(MemoryEngine(), directory=None)
            node.steady_ms = lambda: self.now_ms
            await node.start()
            backend = EmbeddedStore(node)
            backend.load = lambda name=name: self.loads[name]  # type: ignore[misc]
            service = StoreService(backend)
            server = StoreServer({0: service})
            self.backends.append(backend)
            self._services.append(service)
            self._servers.append(server)
            self._ports.append(await server.listen("127.0.0.1", 0, None))

    async def manager(self, name: str, rules: Rules = AT_ONCE, *, further: str = "us") -> Manager:
        """`further`: the name of the further cluster in its settings."""
        main, us = (FixedDirectory([("127.0.0.1", port)]) for port in self._ports)
        store = RemoteBackends(main, None, LookingUp, others=[ClusterAt(further, us)])
        self.stores.append(store)
        await store.open()
        there = store.clusters[further]
        await eventually(lambda: there.is_ready or bool(there.why_not), "the further cluster is there, or refused")
        provide = self.provider if rules.has_provisioner else None
        self.managers.append(Manager(store, rules, provide, name=name, every_s=EVERY_S))
        return self.managers[-1]

    async def close(self) -> None:
        for manager in self.managers:
            await manager.leave()
        for store in self.stores:
            await store.close()
        for service in self._services:
            service.close()
        for server in self._servers:
            await server.close()
        for backend in self.backends:
            await backend.close()

    async def end(self, cluster: str) -> None:
        number = list(self.loads).index(cluster)
        self._services.pop(number).close()
        await self._servers.pop(number).close()

    def silence(self) -> None:
        """Makes the holder of the duty fall silent."""
        self.now_ms += hold_ms(EVERY_S)

    @property
    def clusters(self) -> dict[str, Cluster]:
        return records.clusters_of(self.backends[0].documents.all)

    @property
    def told(self) -> list[tuple[str, str, str]]:
        events = records.events_of(self.backends[0].documents.all)
        return [(event.kind, event.cluster, event.manager) for event in events]
