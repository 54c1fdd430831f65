"""How queues are copied in a cluster, as its backends say it of their shards, and which shards a queue may lie in.

Nothing here is asked of anybody: a cluster's backends say it when a gateway comes, and when it changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from backend_store.metadata.elsewhere import usual_shards
from backend_store.model import QueueDefinition, Replication
from backend_store.wire.store_frames import Copies


class Site(NamedTuple):
    """Where a queue may lie in a cluster."""

    among: tuple[int, ...]
    """One of these shards, or lanes; () is any, and of a queue with a lane at each host all."""
    has_lanes: bool
    """It has a lane at each host."""


class Copying(NamedTuple):
    """See the file's first sentence."""

    copies: Sequence[Copies]
    """By the numbers of the shards; () while nobody has said so."""
    mode: str
    """Of a queue that asks for none."""
    lanes: int
    """0: the backends are no independent hosts."""

    @property
    def is_placed(self) -> bool:
        """Whether all shards are: of one that is not yet, nobody knows its mode."""
        return all(one.mode for one in self.copies)

    def of(self, definition: QueueDefinition) -> Replication:
        """How a queue is copied that lies here."""
        has_lanes = self.lanes > 0 and not definition.single_lane
        return self._shown(range(self.lanes) if has_lanes else (definition.shard,), has_lanes=has_lanes)

    def site(self, asked: Replication, *, needs_one: bool) -> Site | None:
        """Where a queue may lie that asks for that; None: nowhere here. `needs_one`: it takes one shard, or lane."""
        has_lanes = self._has_lanes(asked, needs_one=needs_one)
        if not self.copies:
            return Site((), has_lanes) if not asked.asked() else None
        if has_lanes:
            return Site((), has_lanes) if asked.fits(self._shown(range(self.lanes), has_lanes=True)) else None
        among = tuple(n for n in self._open_to(asked) if asked.fits(self._shown((n,), has_lanes=False)))
        return Site(among, has_lanes) if among else None

    def usual(self, asked: Replication, *, needs_one: bool) -> Replication:
        """How a queue like that is copied here where it asks for nothing."""
        has_lanes = self._has_lanes(asked, needs_one=needs_one)
        shards = range(self.lanes) if has_lanes else self._open_to(Replication())
        return self._shown(shards, has_lanes=has_lanes)

    def _has_lanes(self, asked: Replication, *, needs_one: bool) -> bool:
        return self.lanes > 0 and not needs_one and asked.model != "leader_follower"

    def _open_to(self, asked: Replication) -> list[int]:
        """The shards that are placed and are of this mode."""
        if asked.mode is None:
            return usual_shards(self.copies, self.mode)
        return [number for number, one in enumerate(self.copies) if one.mode == asked.mode]

    def _shown(self, shards: Iterable[int], *, has_lanes: bool) -> Replication:
        """Of several what they all have."""
        copies = [self.copies[n] for n in shards if n < len(self.copies) and self.copies[n].mode]
        if not copies:
            return Replication()
        return Replication(
            factor=min(one.factor for one in copies),
            mode="async" if any(one.mode == "async" for one in copies) else "sync",
            min_in_sync=min(one.min_in_sync for one in copies),
            model="independent_hosts" if has_lanes else "leader_follower",
        )
