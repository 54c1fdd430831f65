"""Routing of a send (a publish to a host): append it to an own lane, forward it once, redirect it, or refuse it.

A send without a slot (no dedupe id, no producer's number, no key) goes to the lane of the host that received it. One
with a slot goes to its home lane, so that all duplicates of an id meet in one log, whichever host received them.

A send that was appended is never forwarded, even if its commit fails to arrive: it may be committed later, and a second
copy in another lane would be a second message. The sender is told that the outcome is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from backend_store.core.host_lanes.limits import FORWARDS_MAX, RETRY_AFTER_MS
from backend_store.core.host_lanes.table import LaneRow, LaneTable


class Send(NamedTuple):
    """A send as a host receives it. `version`: that of the sender's slot table, which forwarding does not change."""

    slot: int | None
    version: int
    forwards: int = 0


class AppendTo(NamedTuple):
    """This host owns the lane: its log decides, by `LaneSlots.refused` if the send has a slot."""

    lane: int


class ForwardTo(NamedTuple):
    """Forward it to this host, with `forwards` increased, and pass its answer back."""

    host: str


class Moved(NamedTuple):
    """The slot is elsewhere: nothing was written. The sender retries by a slot table of at least this version."""

    version: int
    cluster: str


class Refused(NamedTuple):
    """No host that may take it can take it now: nothing was written."""

    retry_after_ms: int = RETRY_AFTER_MS


class Behind(NamedTuple):
    """The sender's table is newer than this host's, which must get a newer one and route again."""

    version: int


Route = AppendTo | ForwardTo | Moved | Refused | Behind


class Standing(NamedTuple):
    """The state of a host beside the table."""

    host: str
    cluster: str
    can_commit: Callable[[int], bool]
    """Whether a lane that this host owns has enough holders in sync and reachable."""
    alive: Collection[str]
    """Hosts that are believed to be alive."""


def route(table: LaneTable, send: Send, standing: Standing, *, turn: int) -> Route:
    """Decides about one send. `turn` distributes sends that this host cannot take over the others."""
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
