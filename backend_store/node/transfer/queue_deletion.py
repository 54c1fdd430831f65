"""Moves everything in a deleted queue to another queue, with the reason.

The queue's name is free at once. Its messages move in the background, across restarts if need be; then its rows are
deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from backend_store.core.leases.leases import Lease
from backend_store.core.log.chunk import Chunk, clear_column, extract
from backend_store.core.log.log import Append
from backend_store.core.log.records import EpochStart, PartitionState
from backend_store.core.log.sublogs import VIEW_DEAD, VIEW_LATE, VIEW_MAIN, VIEW_OUTBOX, own_priority
from backend_store.core.ready.attempt_policy import Policy, Reason
from backend_store.model import Block, Epoch, Offset, Traits
from backend_store.node.transfer.dead_letters import origins
from backend_store.node.transfer.transfer import Timers, Transfer

if TYPE_CHECKING:
    from backend_store.node.partition import Partition
    from backend_store.node.partitions import Partitions

log = structlog.get_logger("pushq.leaving")


class QueueDeletion:
    """Moves all of a partition's messages to a target; calls `on_empty` once, when none is left."""

    def __init__(
        self,
        partition: Partition,
        target: Callable[[], Partitions | None],
        timers: Timers,
        on_empty: Callable[[], None],
    ):
        self._partition = partition
        self._on_empty = on_empty
        self._is_over = False
        self._transfers = []
        partition.is_leaving = True
        for number in (VIEW_MAIN, VIEW_DEAD, VIEW_LATE, VIEW_OUTBOX):
            if number == VIEW_MAIN and partition.main is None:
                continue
            view = partition.view(number)
            if number != VIEW_OUTBOX:  # an outbox lease is a transfer in progress
                view.free_all(Policy())
            annex = self._annex if number == VIEW_MAIN else None
            self._transfers.append(Transfer(view, target, timers, annex=annex, on_idle=self._check))

    def begin(self) -> None:
        for transfer in self._transfers:
            transfer.pump()
        self._partition.request()  # its commit makes all of them look again

    def _check(self) -> None:
        """A last publish may still be in the commit in flight: it moves as well."""
        if self._is_over or not self._partition.is_idle:
            return
        if not any(transfer.view.tally.live for transfer in self._transfers):
            self._is_over = True
            log.info("a deleted queue has moved", queue=self._partition.label)
            self._on_empty()

    def _annex(self, lease: Lease, index: int) -> dict[str, Any]:
        state = lease.state
        assert lease.chunk is not None, "a lease is moved with its chunk in memory"
        tries = state.attempts.get(index, 1) - 1  # the move itself is no attempt
        return death(
            self._partition.label,
            self._partition.steady_ms(),
            attempts=tries,
            history=state.history.get(index, []),
            priority=own_priority(state.shelf, origins(lease.chunk).get(index)),
        )


def death(
    label: str, at_ms: int, *, attempts: int = 0, history: list[Any] | None = None, priority: int = 0
) -> dict[str, Any]:
    """The recorded end of a message whose queue was deleted."""
    return {
        "dead": {
            "from": label,
            "reason": str(Reason.QUEUE_DELETED),
            "at": at_ms,
            "attempts": attempts,
            "history": [list(row) for row in history or ()],
            "priority": priority,
        },
        "exp": None,
    }


def forwarded(blocks: list[Block], label: str, at_ms: int) -> list[Block]:
    """Messages published to a deleted queue, as blocks for its target: in order, perhaps in smaller blocks."""
    plan = Append(PartitionState([EpochStart(Epoch(1), Offset(0))]), seed=0, now_ms=at_ms)
    return [one for block in blocks for one in _forwarded(block, plan.add([block])[0], label, at_ms)]


def _forwarded(block: Block, chunk: Chunk, label: str, at_ms: int) -> Iterator[Block]:
    ids = clear_column(chunk, "id") or [None] * chunk.count
    # They have no offset or time of their own: they were in no log yet.
    annexes = {
        n: {**death(label, at_ms, priority=block.priority), "at": None, "id": ids[n]} for n in range(chunk.count)
    }
    hashes = block.traits.ids if block.traits is not None else None
    first = 0
    for made in extract(chunk, (1 << chunk.count) - 1, annexes, partition=0):
        traits = made.traits or Traits()
        if hashes is not None:
            traits = traits._replace(ids=hashes[first : first + made.count])
        first += made.count
        kept = traits if any(column is not None for column in traits) else None
        yield msgspec.structs.replace(made, priority=block.priority, due_ms=block.due_ms, traits=kept)
