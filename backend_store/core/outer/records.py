"""The out-cluster manager's rows beside those of clusters: a ring of events, calls to the provisioner, the plan, the
attempts to move queues, and the queues that may be merged before long.

A row that cannot be read is skipped: a later version wrote it, and it must stop neither the manager nor a gateway that
shows the other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, TypeVar

import msgspec

from backend_store.core.outer.clusters import Cluster
from backend_store.core.outer.documents import EVENT_KIND, KIND, parsed, stored
from backend_store.core.outer.limits import EVENTS_MAX
from backend_store.core.outer.managing import Decided, Event, Memory, Proposed, ProvisionCall
from backend_store.core.outer.merging import ColdQueue
from backend_store.core.outer.moving import Attempt

CALL_KIND: Final = "cluster-call"
PLAN_KIND: Final = "cluster-plan"
MOVES_KIND: Final = "cluster-moves"
COLD_KIND: Final = "cluster-cold"
HOLDER_KIND: Final = "cluster-manager"
ONLY: Final = "this"
"""The name of the only row of its kind."""

Row = tuple[str, str, bytes | None]
"""Kind, name and data; None removes the row."""
Rows = Callable[[str], list[tuple[str, bytes]]]
"""Returns all rows of a kind, as (name, data)."""


class Holder(msgspec.Struct, frozen=True):
    """The present manager, since when it manages, and its name towards the backends (`asker`)."""

    name: str
    asker: str
    term: int
    since_ms: int


_Row = TypeVar("_Row")
_encode = msgspec.msgpack.Encoder().encode
_event = msgspec.msgpack.Decoder(Event).decode
_call = msgspec.msgpack.Decoder(ProvisionCall).decode
_plan = msgspec.msgpack.Decoder(Proposed).decode
_attempts = msgspec.msgpack.Decoder(tuple[Attempt, ...]).decode
_cold = msgspec.msgpack.Decoder(tuple[ColdQueue, ...]).decode
_holder = msgspec.msgpack.Decoder(Holder).decode


def clusters_of(rows: Rows) -> dict[str, Cluster]:
    return dict(_read(rows, KIND, parsed))


def events_of(rows: Rows) -> list[Event]:
    """Returns the events that are kept, the newest last."""
    return sorted((event for _, event in _read(rows, EVENT_KIND, _event)), key=lambda event: event.number)


def calls_of(rows: Rows) -> dict[str, ProvisionCall]:
    return dict(_read(rows, CALL_KIND, _call))


def proposed_of(rows: Rows) -> Proposed:
    return next((found for _, found in _read(rows, PLAN_KIND, _plan)), Proposed(0))


def attempts_of(rows: Rows) -> tuple[Attempt, ...]:
    return next((found for _, found in _read(rows, MOVES_KIND, _attempts)), ())


def cold_of(rows: Rows) -> tuple[ColdQueue, ...]:
    return next((found for _, found in _read(rows, COLD_KIND, _cold)), ())


def holder_of(rows: Rows) -> Holder | None:
    """Returns the present or last manager; None if none has ever run."""
    return next((found for _, found in _read(rows, HOLDER_KIND, _holder)), None)


def _read(rows: Rows, kind: str, read: Callable[[bytes], _Row]) -> Iterator[tuple[str, _Row]]:
    """Yields (name, row) of all rows of a kind that can be read."""
    for name, data in rows(kind):
        with suppress(ValueError, msgspec.MsgspecError):
            yield name, read(data)


def memory_of(rows: Rows) -> Memory:
    last = max((event.number for event in events_of(rows)), default=0)
    return Memory(clusters_of(rows), calls_of(rows), proposed_of(rows), attempts_of(rows), last + 1, cold_of(rows))


def rows_of(decided: Decided) -> Iterator[Row]:
    """Yields the rows to be written for a decision."""
    for cluster in decided.clusters:
        yield KIND, cluster.name, stored(cluster)
    for name in decided.gone:
        yield KIND, name, None
        yield CALL_KIND, name, None
    for call in decided.calls:
        yield CALL_KIND, call.cluster, _encode(call)
    if decided.proposed is not None:
        yield PLAN_KIND, ONLY, _encode(decided.proposed)
    if decided.attempts is not None:
        yield MOVES_KIND, ONLY, _encode(decided.attempts)
    if decided.cold is not None:
        yield COLD_KIND, ONLY, _encode(decided.cold)
    for event in decided.events:
        yield EVENT_KIND, str(event.number % EVENTS_MAX), _encode(event)


def holder_row(holder: Holder) -> Row:
    return HOLDER_KIND, ONLY, _encode(holder)
