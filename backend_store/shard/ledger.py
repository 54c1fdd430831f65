"""The writes of one term of the in-cluster manager: each act in one transaction with the events that report it.

The election of a later manager makes all writes of this term that are still on their way void. After each write the
manager waits until its view has it, so that it does nothing twice.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import NamedTuple

import structlog

from backend_store.cluster.coordinator import Coordinator
from backend_store.cluster.core.values import Compare, Operation, Put, Transaction, created_at
from backend_store.cluster.fencing import Right
from backend_store.cluster.mirror import Mirror
from backend_store.core.replication.record import Change, NodeId
from backend_store.node.node import steady_clock
from backend_store.shard.interface import ShardNumber
from backend_store.shard.keys import event_key
from backend_store.shard.limits import EVENT_TEXT_CHARS_MAX, SEEN_SECONDS_MAX
from backend_store.shard.members import ClusterEvent, EventKind
from backend_store.shard.registry import Made, encode, submit
from backend_store.shard.view import ClusterView

log = structlog.get_logger("pushq.manager")


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


class Told(NamedTuple):
    """An event, before it has a number."""

    kind: EventKind
    text: str
    node: NodeId | None = None
    shard: ShardNumber | None = None


class Ledger:
    def __init__(self, coordinator: Coordinator, mirror: Mirror, view: ClusterView, me: NodeId, right: Right) -> None:
        self._coordinator = coordinator
        self._mirror = mirror
        self._me = me
        self._right = right
        self.now_ms = steady_clock()
        """The clock for waiting times: it is steady, so that setting the wall clock cannot make a restarted backend
        look away for so long that its copies are made elsewhere."""
        self._number = max((event.number for event in view.events), default=0)

    @property
    def term(self) -> int:
        return self._right.created_at

    async def write(self, operations: Sequence[Operation], *told: Told, compares: Sequence[Compare] = ()) -> bool:
        """Whether the transaction was made. Raises `Unavailable`, `OutcomeUnknown`."""
        mine = created_at(self._right.key, self._right.created_at)
        puts = self._events(told)
        outcome = await self._coordinator.transact(Transaction((mine, *compares), (*operations, *puts)))
        if outcome.succeeded:
            _say(told)
            try:
                async with asyncio.timeout(SEEN_SECONDS_MAX):
                    await self._mirror.wait_revision(outcome.revision)
            except TimeoutError:
                log.warning("the manager does not see what it wrote", revision=outcome.revision)
        return outcome.succeeded

    async def submit(self, shard: ShardNumber, change: Change, *told: Told) -> Made | None:
        """Makes a change of a shard's record, with its events. Returns None where the outcome is not known."""
        made = await submit(self._coordinator, shard, change, also=self._events(told))
        if made is not None and made.is_made:
            _say(told)
        return made

    def _events(self, told: Sequence[Told]) -> list[Put]:
        puts = []
        for one in told:
            self._number += 1
            text = one.text[:EVENT_TEXT_CHARS_MAX]
            event = ClusterEvent(self._number, wall_ms(), one.kind, text, one.node, one.shard, self._me)
            puts.append(Put(event_key(self._number), encode(event)))
        return puts


def _say(told: Sequence[Told]) -> None:
    for one in told:
        log.info(one.text, kind=one.kind, node=one.node, shard=one.shard)
