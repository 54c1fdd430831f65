"""The interface of shards: which shards this process leads, with the node in each, and who leads the others.

A shard is one replicated log with a whole `Node` on top: many queues, with all that belongs to them. A caller of a
`Node` takes it from `Shard.node` for each call, and never keeps it over an `await`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import NewType, Protocol

import msgspec

from backend_store.core.replication.record import Incarnation, NodeId
from backend_store.model import Epoch
from backend_store.node.node import Node

ShardNumber = NewType("ShardNumber", int)
"""From 0 up; also the `partition` of the shard's replication messages and record."""


class ShardLeader(msgspec.Struct, frozen=True):
    """Where a shard is served, as its leader announced it. Of two, the one with the higher epoch is right."""

    shard: ShardNumber
    node: NodeId
    inc: Incarnation
    epoch: Epoch
    address: str
    """`HOST:PORT` of that backend's service listener; "" where it has none."""


OnLeave = Callable[["Shard", str], Awaitable[None]]
"""Called when the shard is about to be handed over to the backend at `HOST:PORT`. The callee begins nothing new with
the node, and returns when what it began is answered; `on_lose` follows."""


class Shard(Protocol):
    """One shard of which this process has a replica."""

    @property
    def number(self) -> ShardNumber: ...

    @property
    def epoch(self) -> Epoch:
        """Epoch of the leadership that this process knows of; 0 before the first one."""

    @property
    def node(self) -> Node | None:
        """Not None exactly while this process leads the shard, everything it took over is committed, and its lease,
        or all its followers, confirm the leadership. The node answers when an operation is as safe as the shard's
        mode promises; when the leadership ends, waiting callers get `OutcomeUnknown`, and the next `Node` is another
        object."""

    @property
    def is_coming(self) -> bool:
        """Whether this process is named leader, and does not serve yet."""

    @property
    def leader(self) -> ShardLeader | None:
        """The node that serves the shard, as far as this process knows; None while no node does."""


class ShardHost(Protocol):
    """All shards of one process."""

    @property
    def shards(self) -> Mapping[ShardNumber, Shard]:
        """The shards of which this process has a replica."""

    @property
    def leaders(self) -> Mapping[ShardNumber, ShardLeader]:
        """The leaders of all shards of the cluster that are served; the mapping is live."""

    def listen(
        self,
        *,
        on_lead: Callable[[Shard, Node], None],
        on_lose: Callable[[Shard], None],
        on_leave: OnLeave | None = None,
    ) -> None:
        """Registers callbacks; all are called on the loop. `on_lead`: `shard.node` is not None any more; also called at
        once for each shard that is led already. `on_lose`: `shard.node` is None again, and what that node had in memory
        is void. `on_leave`: see `OnLeave`."""
