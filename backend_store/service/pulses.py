"""The statistics of a shard's queues, for gateways' time series: all of them once, and from then on the changed ones.

Changed queues are collected once, however many gateways ask, and their numbers are computed once.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from backend_store.client.embedded import EmbeddedStore
from backend_store.client.pulses import Pulse, Pulses
from backend_store.metadata.recent import Recent
from backend_store.model import QueueDefinition
from backend_store.service.asked import Asked
from backend_store.service.limits import PULSES_PER_ASK_MAX

PulseRow = tuple[int, Pulse]
"""The uid of a queue, and its pulse."""


class AsOf(msgspec.Struct, frozen=True, array_like=True):
    """A point in the history of one leader's pulses; points of two leaders cannot be compared."""

    era: str = ""
    version: int = 0


class TakePulses(Asked, frozen=True):
    """Pulses of queues with uids above `after`, in order of uid, at most `PULSES_PER_ASK_MAX`: a list of `PulseRow`."""

    after: int = 0
    since: AsOf | None = None
    """If set, the answer is `PulseNews` of what changed since then. Backends of earlier versions ignore it and answer
    with the first page."""


class PulseNews(msgspec.Struct, frozen=True):
    """At most `PULSES_PER_ASK_MAX` queues."""

    now: AsOf
    """The point up to which this answer is complete."""
    pulses: list[PulseRow] = []
    gone: list[int] = []
    """Uids of queues that are not here any more."""
    is_reset: bool = False
    """Changes since the requested point are not known: the gateway asks for all pages, and for later changes from `now`
    on."""
    is_last: bool = True
    """False where there are further changes."""


class PulseLog:
    """The recently changed queues of one store, in order."""

    def __init__(self, store: EmbeddedStore) -> None:
        self._store = store
        self._rows = store.node.metadata.queues
        self._touched = store.node.touched.listen()
        self._changed: Recent[int] = Recent()
        self._era = secrets.token_hex(8)
        self._defined = self._rows.uids.version

    def news(self, since: AsOf) -> PulseNews:
        self._gather()
        page = self._changed.page(since.version, PULSES_PER_ASK_MAX) if since.era == self._era else None
        if page is None:
            return PulseNews(AsOf(self._era, self._changed.version), is_reset=True)
        uids, version = page
        pulses, gone = [], []
        for uid in uids:
            if (definition := self._rows.of(uid)) is not None:
                pulses.append((uid, self._pulse(definition)))
            else:
                gone.append(uid)
        return PulseNews(AsOf(self._era, version), pulses, gone, is_last=version == self._changed.version)

    def _gather(self) -> None:
        defined = self._rows.uids.since(self._defined)
        self._defined = self._rows.uids.version
        if defined is None:
            self._changed, self._era = Recent(), secrets.token_hex(8)
        self._changed.more = len(self._rows) // 4  # beyond that, all pages cost less
        for uid in {partition.title.uid for partition in self._touched()}.union(defined or ()):
            self._changed.note((uid,))

    def _pulse(self, definition: QueueDefinition) -> Pulse:
        """The pulse, taken once for all gateways as long as nothing happens to the queue."""
        queue = self._store.here(definition.tenant, definition.name)
        now = self._era, self._changed.version_of(definition.uid)
        known: tuple[tuple[str, int], Pulse] | None = queue.extras.get("pulse")
        if known is None or known[0] != now:
            known = queue.extras["pulse"] = now, pulse_of(self._store, definition)
        return known[1]


def pulse_of(store: EmbeddedStore, definition: QueueDefinition) -> Pulse:
    """The pulse of a queue; its consumers are the gateways that wait for its messages."""
    queue = store.here(definition.tenant, definition.name)
    pulses = queue.extras.get("pulses")
    if pulses is None:
        pulses = queue.extras["pulses"] = Pulses(queue)
    counters = [one.extras.get("counter") for one in (queue, *queue.groups.values())]
    waiting = sum(counter.gateways_waiting for counter in counters if counter is not None)
    return pulses.take()._replace(consumers=waiting)


async def _take(store: EmbeddedStore, asked: TakePulses) -> list[PulseRow] | PulseNews:
    if asked.since is not None:
        log: PulseLog | None = store.extras.get("pulses")
        if log is None:
            log = store.extras["pulses"] = PulseLog(store)
        return log.news(asked.since)
    some = store.node.metadata.queues.after(asked.after, PULSES_PER_ASK_MAX)
    return [(definition.uid, pulse_of(store, definition)) for definition in some]


HANDLERS: dict[type, Callable[[EmbeddedStore, Any], Awaitable[Any]]] = {TakePulses: _take}
