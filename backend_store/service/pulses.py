"""The numbers of a shard's queues, for the series of gateways: all of them once, and from then on what changed.

Which queues something happened to is gathered once, however many gateways ask, and so are their numbers.
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
    """A point in the history of one leader's pulses; those of two cannot be compared."""

    era: str = ""
    version: int = 0


class TakePulses(Asked, frozen=True):
    """Of queues with uids above `after`, in their order, `PULSES_PER_ASK_MAX` at most: a list of `PulseRow`."""

    after: int = 0
    since: AsOf | None = None
    """Instead, what something happened to since then: the answer is `PulseNews`. Backends that do not know of it answer
    with the first page."""


class PulseNews(msgspec.Struct, frozen=True):
    """`PULSES_PER_ASK_MAX` queues at most."""

    now: AsOf
    """What is here is all that happened until then."""
    pulses: list[PulseRow] = []
    gone: list[int] = []
    """Uids of queues that lie here no more."""
    is_reset: bool = False
    """What happened since the point that was asked about is not known: all pages are to be asked for, and what happens
    meanwhile with `now`."""
    is_last: bool = True
    """More happened until now."""


class PulseLog:
    """Which queues of one store something happened to, in order."""

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
        self._changed.more = len(self._rows) // 4  # where it is more than that, all pages cost less
        for uid in {partition.title.uid for partition in self._touched()}.union(defined or ()):
            self._changed.note((uid,))

    def _pulse(self, definition: QueueDefinition) -> Pulse:
        """As another gateway was told it, where nothing happened since."""
        queue = self._store.here(definition.tenant, definition.name)
        now = self._era, self._changed.version_of(definition.uid)
        known: tuple[tuple[str, int], Pulse] | None = queue.extras.get("pulse")
        if known is None or known[0] != now:
            known = queue.extras["pulse"] = now, pulse_of(self._store, definition)
        return known[1]


def pulse_of(store: EmbeddedStore, definition: QueueDefinition) -> Pulse:
    """Its consumers are the gateways that wait for messages of it."""
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
