"""How a cluster's shards are replicated, and which shards may take a queue with given replication settings.

A cluster's backends report replication when a gateway connects and when it changes; no method here sends a request.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from backend_store.metadata.elsewhere import usual_shards
from backend_store.model import QueueDefinition, Replication
from backend_store.wire.store_frames import Copies


class Site(NamedTuple):
    """Place of a queue in a cluster."""

    among: tuple[int, ...]
    """Shards, or lanes, one of which takes the queue; () is any one, or all if the queue has a lane at each host."""
    has_lanes: bool
    """The queue has a lane at each host."""


class Copying(NamedTuple):
    """See the file's first sentence."""

    copies: Sequence[Copies]
    """By shard number; () until a backend has reported."""
    mode: str
    """Mode of a queue that asks for none."""
    lanes: int
    """0: the backends are not independent hosts."""

    @property
    def is_placed(self) -> bool:
        """Whether all shards are placed: the mode of a shard is unknown before."""
        return all(one.mode for one in self.copies)

    def of(self, definition: QueueDefinition) -> Replication:
        """How a queue of this cluster is replicated."""
        has_lanes = self.lanes > 0 and not definition.single_lane
        return self._shown(range(self.lanes) if has_lanes else (definition.shard,), has_lanes=has_lanes)

    def site(self, asked: Replication, *, needs_one: bool) -> Site | None:
        """Where a queue with this request may lie; None: nowhere in this cluster. `needs_one`: it takes one shard, or
        one lane."""
        has_lanes = self._has_lanes(asked, needs_one=needs_one)
        if not self.copies:
            return Site((), has_lanes) if not asked.asked() else None
        if has_lanes:
            return Site((), has_lanes) if asked.fits(self._shown(range(self.lanes), has_lanes=True)) else None
        among = tuple(n for n in self._open_to(asked) if asked.fits(self._shown((n,), has_lanes=False)))
        return Site(among, has_lanes) if among else None

    def usual(self, asked: Replication, *, needs_one: bool) -> Replication:
        """How this cluster replicates such a queue by default."""
        has_lanes = self._has_lanes(asked, needs_one=needs_one)
        shards = range(self.lanes) if has_lanes else self._open_to(Replication())
        return self._shown(shards, has_lanes=has_lanes)

    def _has_lanes(self, asked: Replication, *, needs_one: bool) -> bool:
        return self.lanes > 0 and not needs_one and asked.model != "leader_follower"

    def _open_to(self, asked: Replication) -> list[int]:
        """The placed shards of the mode asked for; if none is asked for, see `usual_shards`."""
        if asked.mode is None:
            return usual_shards(self.copies, self.mode)
        return [number for number, one in enumerate(self.copies) if one.mode == asked.mode]

    def _shown(self, shards: Iterable[int], *, has_lanes: bool) -> Replication:
        """What all of these shards provide: the minimum of each."""
        copies = [self.copies[n] for n in shards if n < len(self.copies) and self.copies[n].mode]
        if not copies:
            return Replication()
        return Replication(
            factor=min(one.factor for one in copies),
            mode="async" if any(one.mode == "async" for one in copies) else "sync",
            min_in_sync=min(one.min_in_sync for one in copies),
            model="independent_hosts" if has_lanes else "leader_follower",
        )
