"""A gateway's view of one cluster of backends: its shards and, of a cluster of independent hosts, their doors.

The home cluster's first shard has the definitions of all queues, wherever their messages lie. A further cluster only
adds shards: its first shard adopts queues like the others.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import structlog

from backend_store.core.partitions.slots import SlotTable, first_table
from backend_store.metadata.relocation import Spot
from backend_store.model import QueueDefinition
from backend_store.remote.definitions.directory import Directory, FixedDirectory, parsed
from backend_store.remote.definitions.replication import Copying
from backend_store.remote.home import FIRST, Home
from backend_store.remote.line.backend_addresses import Addresses, There
from backend_store.remote.line.host_doors import Doors
from backend_store.remote.line.line import Line
from backend_store.wire.store_frames import Copies, Greeted

if TYPE_CHECKING:
    from backend_store.remote.store import RemoteBackends


log = structlog.get_logger("pushq.remote")


class ClusterAt(NamedTuple):
    """A cluster's display name and addresses."""

    name: str
    directory: Directory
    addresses: Sequence[tuple[str, int]] = ()
    """Configured addresses of its backends. If there are none, the gateway does not learn of other backends either."""


class BackendCluster:
    """See the file's first sentence. `RemoteBackends` owns it."""

    def __init__(
        self,
        store: RemoteBackends,
        at: ClusterAt,
        gateway: str,
        tls: ssl.SSLContext | None,
        *,
        is_home: bool,
        zone: str = "",
    ) -> None:
        """`zone`: the gateway's."""
        self.name = at.name
        self.is_home = is_home
        self.key = "" if is_home else at.name
        """The name by which definitions refer to it."""
        self.copying = Copying((), "sync", 0)
        """How its shards are replicated."""
        self.lanes = 0
        """Number of lanes if the backends are independent hosts, all of which most queues use; 0: each queue lies in
        one shard."""
        self.is_met = is_home
        """Whether it has reported its model."""
        self.why_not = ""
        """Why it is not the cluster of its name; "" if nothing says so."""
        self.homes: list[Home] = []
        """By shard number."""
        self._store = store
        self._at = at
        self._gateway = gateway
        self._tls = tls
        self._zone = zone
        self._doors: Doors | None = None
        self.addresses = Addresses(self._know) if at.addresses else None
        self.first = self.home(FIRST)

    def home(self, shard: int) -> Home:
        while len(self.homes) <= shard:
            self.homes.append(Home(self._store, self, len(self.homes), self._at.directory, self._gateway, self._tls))
        return self.homes[shard]

    def _know(self, there: There) -> None:
        """Takes over which of its backends are live, as they report it."""
        log.info("backends of a cluster are there", cluster=self.name, backends=[one.address for one in there])
        if isinstance(self._at.directory, FixedDirectory):
            self._at.directory.know([found for one in there if (found := parsed(one.address)) is not None])
        if self._doors is not None:
            self._doors.know(there)

    def homes_of(self, definition: QueueDefinition) -> Sequence[Home]:
        """The shards in which a queue of this cluster lies."""
        return self.homes if self.has_lanes_of(definition) else [self.home(definition.shard)]

    def has_lanes_of(self, definition: QueueDefinition) -> bool:
        """Whether a queue of this cluster has a lane at each host."""
        return self.lanes > 0 and not definition.single_lane

    def spot(self, shard: int) -> Spot:
        return Spot(self.key, shard, self.lanes > 0)

    @property
    def backends(self) -> int:
        """Number of configured backends, at least 1."""
        return max(1, len(self._at.addresses))

    @property
    def named(self) -> list[str]:
        """Its configured backends, each as `HOST:PORT`."""
        return [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self._at.addresses]

    @property
    def is_ready(self) -> bool:
        """Whether a queue may be put here: the cluster is connected and takes what our home cluster defines."""
        return self.is_home or (self.is_met and self.first.line.is_open and self.first.is_ours)

    @property
    def is_away(self) -> bool:
        """No shard answers. A single shard may lack a leader for longer than calls wait for a cluster."""
        return all(home.line.is_away for home in self.homes)

    @property
    def doors(self) -> Doors:
        assert self._doors is not None, "a queue with lanes has doors"
        return self._doors

    @cached_property
    def lane_slots(self) -> SlotTable:
        """Home lane of each slot, the same at every host."""
        return first_table(self.lanes)

    @property
    def other_lines(self) -> list[Line]:
        """All lines but the first shard's."""
        doors = self._doors.lines if self._doors is not None else []
        return [*(home.line for home in self.homes[1:]), *doors]

    def greeted(self, frame: Greeted) -> None:
        """Takes over what its first shard reports of the cluster."""
        self.copying = Copying((), frame.mode, frame.lanes)
        if frame.lanes and self._doors is None:
            self.lanes = frame.lanes
            self._doors = Doors(
                self._at.addresses,
                self._gateway,
                self._tls,
                cluster=self.key,
                zone=self._zone,
                learnt=self.addresses,
            )
        self.home(max(1, frame.shards) - 1)
        self.copied(frame.copies)
        if not self.is_met:
            self.is_met = True
            self._store.met()

    def copied(self, copies: Sequence[Copies]) -> None:
        """Takes over how the shards are replicated, as the first shard reports it. Shards that only take queues which
        ask for their mode are listed here, but not counted in `Greeted.shards`."""
        self.copying = self.copying._replace(copies=copies)
        self.home(max(1, len(copies)) - 1)

    async def close(self) -> None:
        if self.addresses is not None:
            self.addresses.close()
        if self._doors is not None:
            await self._doors.close()
        await asyncio.gather(*(home.line.close() for home in self.homes))
