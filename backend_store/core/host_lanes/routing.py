"""What a host does with a send: appends it to a lane of its own, passes it on once, or says who would know better.

What has no slot (no dedupe id, no producer's number, no key) goes into the lane of whoever took it. What has one goes
to its home lane, so that all repetitions of an id meet in one log, whichever host they were sent to.

A send that was appended is never passed on, also when its commit does not come: it may be committed later, and a
second copy in another lane would be a second message. Its sender is told that the outcome is open.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from backend_store.core.host_lanes.limits import FORWARDS_MAX, RETRY_AFTER_MS
from backend_store.core.host_lanes.table import LaneRow, LaneTable


class Send(NamedTuple):
    """A send as a host gets it. `version`: of the slot table that the sender has, the same on all its way."""

    slot: int | None
    version: int
    forwards: int = 0


class AppendTo(NamedTuple):
    """The lane is this host's: its log decides, by `LaneSlots.refused` where the send has a slot."""

    lane: int


class ForwardTo(NamedTuple):
    """Pass it on to this host, as forwarded once more, and its answer back."""

    host: str


class Moved(NamedTuple):
    """Not here any more: nothing was written. The sender asks again by a slot table of at least this version."""

    version: int
    cluster: str


class Refused(NamedTuple):
    """Nobody who may take it can: nothing was written."""

    retry_after_ms: int = RETRY_AFTER_MS


class Behind(NamedTuple):
    """The sender's table is newer than this host's, which gets a newer one first and asks again."""

    version: int


Route = AppendTo | ForwardTo | Moved | Refused | Behind


class Standing(NamedTuple):
    """What a host knows beside the table."""

    host: str
    cluster: str
    can_commit: Callable[[int], bool]
    """Of a lane that this host owns: whether enough holders are in sync and within reach."""
    alive: Collection[str]
    """Hosts that are believed to be there."""


def route(table: LaneTable, send: Send, standing: Standing, *, turn: int) -> Route:
    """Decides about one send. `turn` spreads what this host cannot take over the others."""
    if send.version > table.slots.version:
        return Behind(send.version)
    return _unkeyed(table, send, standing, turn) if send.slot is None else _keyed(table, send, send.slot, standing)


def _unkeyed(table: LaneTable, send: Send, standing: Standing, turn: int) -> Route:
    own = table.lane_of(standing.host)
    if own is not None and _takes_unkeyed(table, own) and standing.can_commit(own):
        return AppendTo(own)
    near = [n for n, lane in table.lanes.items() if lane.cluster == standing.cluster]
    if not any(number in table.slots.open_partitions for number in near):
        return _moved(table, min(table.slots.open_partitions))
    if send.forwards >= FORWARDS_MAX:
        return Refused()
    others = [table.lanes[number].preferred for number in near if _takes_unkeyed(table, number)]
    others = [host for host in others if host != standing.host and host in standing.alive]
    return ForwardTo(others[turn % len(others)]) if others else Refused()


def _takes_unkeyed(table: LaneTable, number: int) -> bool:
    return table.lanes[number].is_home and number in table.slots.open_partitions


def _keyed(table: LaneTable, send: Send, slot: int, standing: Standing) -> Route:
    number = table.slots.route(slot)
    if number is None:
        return Refused()
    lane: LaneRow = table.lanes[number]
    if lane.cluster != standing.cluster:
        return _moved(table, number)
    if lane.owner is None:
        return Refused()
    if lane.is_owned_by(standing.host):
        return AppendTo(number) if standing.can_commit(number) else Refused()
    if send.forwards >= FORWARDS_MAX:
        return _moved(table, number)
    return ForwardTo(lane.owner.host)


def _moved(table: LaneTable, number: int) -> Moved:
    return Moved(table.slots.version, table.lanes[number].cluster)
