"""Independent hosts in one process: real listeners and connections over loopback, each lane a node with an owner that
the test chooses.

Replication of a lane between hosts is left out: a lane's node moves from host to host as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from backend_store.client.embedded import EmbeddedStore
from backend_store.core.host_lanes.table import LaneRow, LaneTable, Owner
from backend_store.core.leases.leases import Lease
from backend_store.core.log.chunk import KIND_JSON, Columns
from backend_store.core.partitions.slots import first_table
from backend_store.hosts.door import Door, OwnersOfLanes
from backend_store.model import Epoch, Published, PushqError, QueueConfig
from backend_store.node.node import Node
from backend_store.remote.definitions.directory import FixedDirectory
from backend_store.remote.line.line import Line
from backend_store.remote.queues.laned import LanedQueue
from backend_store.remote.store import RemoteBackends
from backend_store.service.serving import StoreServer, StoreService
from backend_store.storage.memory import MemoryEngine
from backend_store.wire.store_frames import BackendAt, Copies
from push.delivery.lookup_retry import LookingUp
from tests.support.patience import PATIENCE_S, eventually

WAIT_S = PATIENCE_S
TENANT = "default"


class Host:
    """The listener of one process: the lanes that it owns, and its door."""

    def __init__(self, name: str, world: Lanes):
        """Hosts with even numbers at the end of their names are in zone east, the others in west."""
        self.name = name
        self.services: dict[int, StoreService] = {}
        self.door = Door(
            name,
            lambda: world.table if world.is_founded else None,
            lambda: world.alive,
            self.services,
            self._line,
            lanes=len(world.nodes),
            zone=("east", "west")[int(name[1:]) % 2],
        )
        self._world = world
        self.is_cut_off = False
        """Whether its door reaches no other host."""
        self.server = StoreServer(self.services, world.address_of, door=self.door, there=lambda: world.there)
        self.port = 0

    def _line(self, lane: int, heard: Any) -> Line:
        def address(lane: int) -> str | None:
            return "127.0.0.1:1" if self.is_cut_off else self._world.address_of(lane)

        return Line(lane, OwnersOfLanes(address), heard, f"host-{self.name}", None)

    async def open(self) -> None:
        self.port = await self.server.listen("127.0.0.1", self.port, None)

    async def close(self) -> None:
        await self.server.close()
        await self.door.close()


class Lanes:
    """`lanes` hosts with one lane each, one host without, and a table that a test may change."""

    def __init__(self, lanes: int = 3):
        self.nodes = [Node(MemoryEngine(), directory=None) for _ in range(lanes)]
        self.names = [f"h{number}" for number in range(lanes + 1)]
        self.alive = dict.fromkeys(self.names, 1)
        self.owners: list[str | None] = [*self.names[:lanes]]
        self.hosts = {name: Host(name, self) for name in self.names}
        self.stores: list[RemoteBackends] = []
        self.is_founded = True
        self.tells = False
        """Whether hosts report which of them are alive."""
        self.homes = self.names[:lanes]
        """The owner of each lane."""
        self._epoch = 1

    @property
    def table(self) -> LaneTable:
        holders = tuple(self.homes)
        rows = {
            number: LaneRow(
                holders[number],
                holders,
                Owner(owner, 1) if owner is not None else None,
                Epoch(self._epoch),
                in_sync=holders,
            )
            for number, owner in enumerate(self.owners)
        }
        return LaneTable(self._epoch, first_table(len(self.nodes)), rows, 2)

    @property
    def there(self) -> list[BackendAt]:
        if not self.tells:
            return []
        table = self.table
        at_home = {row.preferred for row in table.lanes.values() if row.is_home}
        return [BackendAt(n, f"127.0.0.1:{self.hosts[n].port}", n in at_home) for n in self.names if n in self.alive]

    def tell(self) -> None:
        """Informs all hosts which of them are alive."""
        self.tells = True
        for host in self.hosts.values():
            host.server.tell_backends()

    async def lose(self, name: str) -> None:
        """Removes the host, along with its session."""
        await self.hosts[name].server.close()
        self.alive.pop(name)

    def address_of(self, lane: int) -> str | None:
        owner = self.owners[lane]
        return f"127.0.0.1:{self.hosts[owner].port}" if owner is not None else None

    def own(self, lane: int, name: str | None) -> None:
        """Transfers the lane to another host; None: nobody owns it."""
        before = self.owners[lane]
        if before is not None:
            self.hosts[before].services.pop(lane).close()
        self.owners[lane] = name
        self._epoch += 1
        if name is not None:
            self._serve(lane, name)

    def _serve(self, lane: int, name: str) -> None:
        store = EmbeddedStore(self.nodes[lane])
        lanes = len(self.nodes)
        copies = [Copies("sync", 1, 1)] * lanes
        self.hosts[name].services[lane] = StoreService(store, lane=lane, lanes=lanes, copies=lambda: copies)

    async def store(self, *names: str, zone: str = "") -> RemoteBackends:
        """The store of a gateway that was told of these hosts; of all hosts if no name is given."""
        addresses = [("127.0.0.1", self.hosts[name].port) for name in names or self.names]
        made = RemoteBackends(FixedDirectory(addresses), None, LookingUp, addresses=addresses, zone=zone)
        self.stores.append(made)
        await made.open()
        return made

    async def __aenter__(self) -> Self:
        for node in self.nodes:
            await node.start()
        for host in self.hosts.values():
            await host.open()
        for lane, owner in enumerate(self.owners):
            assert owner is not None
            self._serve(lane, owner)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        for store in self.stores:
            await store.close()
        for host in self.hosts.values():
            for service in host.services.values():
                service.close()
            await host.close()
        for node in self.nodes:
            await node.close()


async def make(store: RemoteBackends, name: str = "q", **settings: Any) -> LanedQueue:
    queue, _ = await store.create_queue(TENANT, name, QueueConfig(**{"encrypted": False, **settings}))
    assert isinstance(queue, LanedQueue)
    return queue


async def queue_at(store: RemoteBackends, name: str = "q") -> LanedQueue:
    """The queue, as created by another gateway."""
    await eventually(lambda: (TENANT, name) in store.metadata.queues)
    queue = store.queue(TENANT, name)
    assert isinstance(queue, LanedQueue)
    return queue


def columns(
    bodies: Sequence[bytes],
    keys: Sequence[str | None] = (),
    ids: Sequence[bytes | None] = (),
    priorities: Sequence[int] = (),
) -> Columns:
    table: dict[str, Sequence[Any]] = {"key": keys} if keys else {}
    hashes = [one and one.ljust(16, b"\0") for one in ids] or None
    return Columns(KIND_JSON, list(bodies), table, hashes=hashes, priorities=list(priorities) or None)


async def publish(queue: LanedQueue, *bodies: bytes, **known_by: Any) -> Published | PushqError:
    done: asyncio.Future[Published | PushqError] = asyncio.get_running_loop().create_future()
    queue.publish(list(queue.blocks(columns(bodies, **known_by), None).blocks), done.set_result)
    return await asyncio.wait_for(done, WAIT_S)


def places(*answers: Published | PushqError) -> list[tuple[int, int]]:
    """(lane, offset) of all messages; each call published one."""
    found: list[tuple[int, int]] = []
    for one in answers:
        assert isinstance(one, Published), one
        found += one.places or [(one.partition, one.base + n) for n in range(one.count)]
    return found


class Taker:
    """A consumer of a queue at one gateway, with a given credit."""

    gateway = ""

    def __init__(self, queue: LanedQueue, credit: int):
        self.queue = queue
        self.credit = credit
        self.leases: list[Lease] = []
        self.bodies: list[bytes] = []
        queue.on_ready(self._deal, lambda: {30_000: self.credit} if self.credit else {})
        queue.wanted_changed()

    def _deal(self) -> None:
        while self.credit and (lease := self.queue.take(self.credit, self, 30_000)) is not None:
            self.credit -= lease.bits.bit_count()
            self.leases.append(lease)
            assert lease.chunk is not None
            bodies = lease.chunk.messages.bodies
            self.bodies += [bodies[n] for n in range(lease.bits.bit_length()) if lease.bits >> n & 1]

    @property
    def receipts(self) -> list[str]:
        return [f"{one.token}{n:02x}" for one in self.leases for n in range(one.bits.bit_length()) if one.bits >> n & 1]

    def released(self, count: int) -> None: ...
    def lost(self, receipts: list[str], *, ran_out: bool = True) -> None: ...
    def sendable(self) -> None: ...
