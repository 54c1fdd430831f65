"""How a lane changes its owner: adopted when its host's session has lapsed, given back by a handover.

Each function makes the next table from one that was read, or raises `Conflict`; the coordinator writes it only over
that one. `alive` has the hosts with a session, by their present incarnation: who started anew since is not the owner
that the table names, so its lane is adopted, most often by itself.

    adopted()        the owner is gone: a holder that has all that is committed takes the lane, in the next epoch
    handed_over()    the owner has stopped and said so in the lane's log: the preferred host, in sync, takes it back
    with_in_sync()   the owner takes a holder out, or back in

Whoever adopts was in sync, so no commit was possible without it, and it obeys no older epoch from then on: that is
what fences the last owner, not this table. A commit may still succeed in the old epoch until the adopter has heard.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from backend_store.core.host_lanes.table import LaneRow, LaneTable, Owner
from backend_store.model import Conflict, Epoch

Alive = Mapping[str, int]
"""By host the incarnation that has a session."""


def is_alive(owner: Owner | None, alive: Alive) -> bool:
    return owner is not None and alive.get(owner.host) == owner.incarnation


def adopters(lane: LaneRow, alive: Alive) -> list[str]:
    """Hosts that may adopt a lane: those in sync, the preferred one first; without one of them, eligible ones.

    None of them alive: the lane waits. To take another holder would be to lose what was confirmed.
    """
    candidates = [host for host in lane.in_sync if host in alive] or [host for host in lane.eligible if host in alive]
    return sorted(candidates, key=lambda host: host != lane.preferred)


def adopted(table: LaneTable, number: int, host: str, alive: Alive) -> LaneTable:
    """The lane after a host has adopted it. Raises `Conflict` while its owner is alive, and for who may not."""
    lane = table.lanes[number]
    if is_alive(lane.owner, alive):
        raise Conflict(f"lane {number}: its owner is alive; it gives the lane away itself")
    if host not in adopters(lane, alive):
        raise Conflict(f"lane {number}: {host!r} may lack what was confirmed; adopters are {adopters(lane, alive)}")
    kept = _without_the_dead(lane, host, alive, table.min_in_sync)
    return table.with_lane(number, _owned(kept, Owner(host, alive[host])))


def handed_over(table: LaneTable, number: int, by: Owner, epoch: Epoch, target: str, alive: Alive) -> LaneTable:
    """The lane after its owner has given it to another host, or to itself: then a handover begun is taken back.

    It is about the epoch in which the owner has stopped; in a later one of its own it may be lending again. Raises
    `Conflict` where that epoch is over, or the target is dead or not in sync.
    """
    lane = table.lanes[number]
    if (lane.owner, lane.epoch) != (by, epoch):
        raise Conflict(f"lane {number}: epoch {epoch} of {by.host!r} is over, it is {lane.epoch}")
    if target not in lane.in_sync or target not in alive:
        raise Conflict(f"lane {number}: {target!r} is not in sync; in sync are {list(lane.in_sync)}")
    return table.with_lane(number, _owned(lane, Owner(target, alive[target])))


def with_in_sync(table: LaneTable, number: int, by: Owner, seen: int, members: Iterable[str]) -> LaneTable:
    """The lane with other holders in sync: what its owner asks for, by the row whose version it has `seen`.

    An ask that comes late, or twice, finds another version, also where the row looks as it did then: a holder that has
    fallen behind since would be taken in again. Raises `Conflict`.
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
    """Who was eligible alone cannot vouch for those in sync, who are dead now: they stay eligible beside it."""
    if adopter in lane.in_sync:
        return _in_sync(lane, {host for host in lane.in_sync if host in alive}, set(), min_in_sync)
    return _in_sync(lane, {adopter}, {*lane.in_sync, *lane.eligible} - {adopter}, min_in_sync)


def _in_sync(lane: LaneRow, wanted: set[str], remembered: set[str], min_in_sync: int) -> LaneRow:
    """Below the minimum nothing can be committed, so whoever was in sync until then still has all there is."""
    dropped = set(lane.in_sync) - wanted
    eligible = {*lane.eligible, *dropped, *remembered} - wanted if len(wanted) < min_in_sync else set[str]()
    return msgspec.structs.replace(
        lane,
        in_sync=tuple(host for host in lane.holders if host in wanted),
        eligible=tuple(host for host in lane.holders if host in eligible),
    )
