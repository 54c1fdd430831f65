"""Holds back messages of a strictly ordered queue, by slot, while older messages of the same keys are still to be
delivered from another partition, or from another place of the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backend_store.core.log.bits import indexes
from backend_store.core.ready.strict import StrictRuns

if TYPE_CHECKING:
    from backend_store.node.partition import Partition


def close_lanes(partition: Partition) -> None:
    """Tells the lanes which slots are held back; messages of slots that no longer are become ready."""
    main, slotting = partition.main, partition.slotting
    if main is None or partition.config.ordering != "strict":
        return
    # A slot held for another place is held from its first message on, the lower of the two bounds.
    closed = slotting.waiting() if slotting is not None else {}
    closed.update(dict.fromkeys(indexes(partition.held_slots), 0))
    for lane in main.core.lanes.all:
        if isinstance(lane.runs, StrictRuns):
            lane.runs.close(closed)
    partition.look_again(main)
