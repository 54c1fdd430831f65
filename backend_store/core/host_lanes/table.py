"""The lane table: which host owns which lane of a queue, in which epoch, and which lane is home to which keys.

The coordinator has one row per queue. Each change makes a new version, which is written only over the version it was
made from. The slot table inside has versions of its own: lanes are its partitions, so `slots` and `slot_moves` move a
key's home between lanes as between partitions, and a caller's order depends on that version alone. An adoption changes
no slot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from backend_store.core.host_lanes.limits import LANES_PER_QUEUE_MAX
from backend_store.core.partitions.slots import SlotTable, first_table
from backend_store.model import Epoch, InvalidRequest

CLUSTER_DEFAULT = ""


class Owner(NamedTuple):
    """A process that may own a lane: a host in one of its incarnations. After a restart it is another owner."""

    host: str
    incarnation: int


class LaneRow(msgspec.Struct, frozen=True):
    """A lane: its holders store its log, and its owner writes the log in the epoch."""

    preferred: str
    """The host whose lane this is."""
    holders: tuple[str, ...]
    owner: Owner | None = None
    """None: no host has taken the lane yet. An owner whose session has lapsed stays here until the lane is adopted."""
    epoch: Epoch = Epoch(0)
    in_sync: tuple[str, ...] = ()
    """Holders that have everything committed, all of which a commit needs."""
    eligible: tuple[str, ...] = ()
    """Holders that were in sync when commits became impossible: they still have everything committed."""
    cluster: str = CLUSTER_DEFAULT
    version: int = 1
    """Version of the table that last changed the row: a request by an older row is refused, even if they look equal."""

    @property
    def is_home(self) -> bool:
        """Whether the preferred host owns the lane. An adopted lane takes no unkeyed sends."""
        return self.owner is not None and self.owner.host == self.preferred

    def is_owned_by(self, host: str) -> bool:
        return self.owner is not None and self.owner.host == host


class LaneTable(msgspec.Struct, frozen=True):
    """The row of one queue at the coordinator. `lanes` has a row for each partition number of `slots`."""

    version: int
    slots: SlotTable
    lanes: dict[int, LaneRow]
    min_in_sync: int

    def lane_of(self, host: str) -> int | None:
        """Returns the lane that prefers a host; None for a host without a lane of the queue."""
        return next((number for number, lane in self.lanes.items() if lane.preferred == host), None)

    def owned_by(self, host: str) -> list[int]:
        return [number for number, lane in self.lanes.items() if lane.is_owned_by(host)]

    def with_lane(self, number: int, lane: LaneRow) -> LaneTable:
        """Returns the next version of the table, with another row for one lane."""
        version = self.version + 1
        row = _checked(msgspec.structs.replace(lane, version=version))
        return msgspec.structs.replace(self, version=version, lanes={**self.lanes, number: row})

    def with_slots(self, slots: SlotTable) -> LaneTable:
        """Returns the next version of the table, with a newer slot table. One that is not newer changes nothing."""
        if slots.version <= self.slots.version:
            return self
        return msgspec.structs.replace(self, version=self.version + 1, slots=slots)


def first_lanes(
    clusters: Mapping[str, Sequence[str]], *, min_in_sync: int, holders_max: int = LANES_PER_QUEUE_MAX
) -> LaneTable:
    """Returns the table of a new queue: a lane per host, stored on it and its next `holders_max` − 1 neighbours.

    `clusters` has the hosts of each cluster. No lane has an owner yet: each host takes its own by the first adoption.
    Raises `InvalidRequest` for too few or too many hosts.
    """
    lanes: dict[int, LaneRow] = {}
    for cluster, hosts in clusters.items():
        for place, host in enumerate(hosts):
            holders = tuple([*hosts[place:], *hosts[:place]][:holders_max])
            if len(holders) < min_in_sync:
                raise InvalidRequest(
                    f"cluster {cluster!r}: {len(holders)} hosts hold a lane, min_in_sync is {min_in_sync}; "
                    "add hosts or lower it"
                )
            lanes[len(lanes)] = LaneRow(host, holders, in_sync=holders, cluster=cluster)
    if not 1 <= len(lanes) <= LANES_PER_QUEUE_MAX:
        raise InvalidRequest(f"hosts: {len(lanes)} of them; a queue has 1 to {LANES_PER_QUEUE_MAX}")
    return LaneTable(1, first_table(len(lanes)), lanes, min_in_sync)


def _checked(lane: LaneRow) -> LaneRow:
    assert lane.preferred in lane.holders
    assert lane.owner is None or lane.owner.host in lane.in_sync, "an owner that is not in sync with itself"
    assert {*lane.in_sync, *lane.eligible} <= set(lane.holders), "in sync without a copy"
    assert not set(lane.in_sync) & set(lane.eligible)
    return lane
