"""How a queue is partitioned: what each partition holds, and which slots are moving to it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Literal

from backend_store.core.log.sublogs import VIEW_DEAD, VIEW_OUTBOX
from backend_store.core.partitions.slots import ALL_SLOTS, SlotTable, unpacked
from backend_store.node.partition import Partition
from backend_store.node.partitions import Partitions


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """One partition; its numbers mean what they mean for the whole queue."""

    partition: int
    state: Literal["open", "draining"]
    slots: int
    """Number of slots whose messages it takes."""
    slots_arriving: int
    """Number of slots moving to it: their messages wait until they have arrived."""
    ready: int
    in_flight: int
    delayed: int
    dead: int
    bytes: int

    def with_that_of(self, other: PartitionInfo) -> PartitionInfo:
        """Adds the numbers of the partition with the same number in another cluster."""
        sums = {name: getattr(self, name) + getattr(other, name) for name in _SUMS}
        state: Literal["open", "draining"] = "open" if "open" in (self.state, other.state) else "draining"
        return replace(self, state=state, **sums)


_SUMS = ("slots", "slots_arriving", "ready", "in_flight", "delayed", "dead", "bytes")


def layout_of(queue: Partitions) -> list[PartitionInfo] | None:
    """By number. None for a queue with one partition for good. A queue that moves or moved to another cluster has no
    open partition here."""
    if not queue.may_change:
        return None
    if queue.definition.takes_none:
        return [_info(partition, "draining", 0, 0) for partition in queue.all]
    takes = unpacked(queue.definition.takes) or ALL_SLOTS
    if queue.map is None:
        return [_info(queue.first, "open", takes.bit_count(), 0)]
    table = queue.map.table
    arriving = Counter({move.target: sum(takes >> slot & 1 for slot in move.slots) for move in table.moves})
    owned = Counter(owner for slot, owner in enumerate(table.owners) if takes >> slot & 1)
    found = []
    for partition in queue.all:
        number = partition.index
        slots = owned[number] - arriving[number]
        found.append(_info(partition, _state(table, number), slots, arriving[number]))
    return found


def _state(table: SlotTable, number: int) -> Literal["open", "draining"]:
    return "open" if number in table.open_partitions else "draining"


def _info(partition: Partition, state: Literal["open", "draining"], slots: int, arriving: int) -> PartitionInfo:
    main, log = partition.main, partition.state
    return PartitionInfo(
        partition.index,
        state,
        slots,
        arriving,
        ready=main.ready if main is not None else log.live,
        in_flight=main.core.in_flight if main is not None else 0,
        delayed=main.core.delayed if main is not None else 0,
        dead=sum(log.views[view].live for view in (VIEW_DEAD, VIEW_OUTBOX) if view in log.views),
        bytes=main.bytes if main is not None else log.live_bytes,
    )
