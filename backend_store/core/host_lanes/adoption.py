"""Change of a lane's owner (failover): adoption when its host's session has lapsed, return by a handover.

Each function returns the next table from one that was read, or raises `Conflict`; the coordinator writes it only over
that table. `alive` has the hosts with a session, with their present incarnation: a host that restarted since is not the
owner that the table names, so its lane is adopted, most often by the same host.

    adopted()        the owner is gone: a holder that has everything committed takes the lane, in the next epoch
    handed_over()    the owner has stopped and logged that in the lane: the preferred host, in sync, takes it back
    with_in_sync()   the owner removes a holder from the in-sync set, or adds it again

The adopter was in sync, so no commit was possible without it, and it obeys no older epoch from then on: that fences the
last owner, not this table. A commit may still succeed in the old epoch until the adopter has learned of the new one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from backend_store.core.host_lanes.table import LaneRow, LaneTable, Owner
from backend_store.model import Conflict, Epoch

Alive = Mapping[str, int]
"""The incarnation with a session, by host."""


def is_alive(owner: Owner | None, alive: Alive) -> bool:
    return owner is not None and alive.get(owner.host) == owner.incarnation


def adopters(lane: LaneRow, alive: Alive) -> list[str]:
    """Returns the live hosts that may adopt a lane, the preferred one first: those in sync, or if there is none, those
    that are eligible.

    If none of either is alive, the lane waits, because any other holder may lack confirmed messages.
    """
    candidates = [host for host in lane.in_sync if host in alive] or [host for host in lane.eligible if host in alive]
    return sorted(candidates, key=lambda host: host != lane.preferred)


def adopted(table: LaneTable, number: int, host: str, alive: Alive) -> LaneTable:
    """Returns the table after a host has adopted a lane. Raises `Conflict` if its owner lives or the host may not."""
    lane = table.lanes[number]
    if is_alive(lane.owner, alive):
        raise Conflict(f"lane {number}: its owner is alive; it gives the lane away itself")
    if host not in adopters(lane, alive):
        raise Conflict(f"lane {number}: {host!r} may lack what was confirmed; adopters are {adopters(lane, alive)}")
    kept = _without_the_dead(lane, host, alive, table.min_in_sync)
    return table.with_lane(number, _owned(kept, Owner(host, alive[host])))


def handed_over(table: LaneTable, number: int, by: Owner, epoch: Epoch, target: str, alive: Alive) -> LaneTable:
    """Returns the table after the owner has given a lane to another host, or to itself, which cancels a handover.

    `epoch` is the one in which the owner has stopped; in a later one of its own it may be lending again. Raises
    `Conflict` if that epoch is over, or the target is dead or not in sync.
    """
    lane = table.lanes[number]
    if (lane.owner, lane.epoch) != (by, epoch):
        raise Conflict(f"lane {number}: epoch {epoch} of {by.host!r} is over, it is {lane.epoch}")
    if target not in lane.in_sync or target not in alive:
        raise Conflict(f"lane {number}: {target!r} is not in sync; in sync are {list(lane.in_sync)}")
    return table.with_lane(number, _owned(lane, Owner(target, alive[target])))


def with_in_sync(table: LaneTable, number: int, by: Owner, seen: int, members: Iterable[str]) -> LaneTable:
    """Returns the table with another in-sync set of a lane, at the request of its owner, which has `seen` a version of
    the row. Raises `Conflict` if that version or the owner is another, or for members that are no holders.

    The version differs for a late or duplicate request even if the row looks the same: otherwise a holder that has
    fallen behind since would be in sync again.
    """
    lane = table.lanes[number]
    if lane.owner != by or lane.version != seen:
        raise Conflict(f"lane {number}: {by.host!r} has seen version {seen}, it is {lane.version}; read it again")
    wanted = set(members)
    if by.host not in wanted or not wanted <= set(lane.holders):
        raise Conflict(f"lane {number}: in sync are the owner and other holders, not {sorted(wanted)}")
    return table.with_lane(number, _in_sync(lane, wanted, set(), table.min_in_sync))


def _owned(lane: LaneRow, owner: Owner) -> LaneRow:
    return msgspec.structs.replace(lane, owner=owner, epoch=Epoch(lane.epoch + 1))


def _without_the_dead(lane: LaneRow, adopter: str, alive: Alive, min_in_sync: int) -> LaneRow:
    """Returns the lane without dead members in sync. If the adopter was only eligible, it cannot vouch for the former
    in-sync members, all of which are dead: they stay eligible beside it.
    """
    if adopter in lane.in_sync:
        return _in_sync(lane, {host for host in lane.in_sync if host in alive}, set(), min_in_sync)
    return _in_sync(lane, {adopter}, {*lane.in_sync, *lane.eligible} - {adopter}, min_in_sync)


def _in_sync(lane: LaneRow, wanted: set[str], remembered: set[str], min_in_sync: int) -> LaneRow:
    """Returns the lane with another in-sync set. Below the minimum nothing can be committed, so every holder that was
    in sync until then still has everything and stays eligible.
    """
    dropped = set(lane.in_sync) - wanted
    eligible = {*lane.eligible, *dropped, *remembered} - wanted if len(wanted) < min_in_sync else set[str]()
    return msgspec.structs.replace(
        lane,
        in_sync=tuple(host for host in lane.holders if host in wanted),
        eligible=tuple(host for host in lane.holders if host in eligible),
    )
