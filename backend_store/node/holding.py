"""Keeps messages in strict order back, by slot, while older ones of their keys are to be delivered elsewhere: in
another partition, or at another place of the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backend_store.core.bits import indexes
from backend_store.core.keyed import KeyedRuns

if TYPE_CHECKING:
    from backend_store.node.partition import Partition


def close_lanes(partition: Partition) -> None:
    """Tells the lanes which messages wait; those that need not any more are looked for anew."""
    main, slotting = partition.main, partition.slotting
    if main is None or partition.config.ordering != "strict":
        return
    # What waits for another place waits from the first message on, so it is the lower bound of the two.
    closed = slotting.waiting() if slotting is not None else {}
    closed.update(dict.fromkeys(indexes(partition.held_slots), 0))
    for lane in main.core.lanes.all:
        assert isinstance(lane.runs, KeyedRuns)
        lane.runs.close(closed)
    partition.look_again(main)
