"""Pulses of queues that are elsewhere: a page of them at a time is asked for, and what came last is what there is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from backend_store.client.pulses import Pulse
from backend_store.model import ClusterAway, PushqError, QueueDefinition, QueueNotFound
from backend_store.remote.limits import PULSES_FRESH_SECONDS
from backend_store.remote.queue import RemoteQueue
from backend_store.service.limits import PULSES_PER_ASK_MAX
from backend_store.service.operations import TakePulses

if TYPE_CHECKING:
    from backend_store.remote.home import Home
    from backend_store.remote.store import RemoteBackends

_pulses = msgspec.msgpack.Decoder(list[tuple[int, Pulse]]).decode


class RemotePulses:
    """Has the shape of `client.pulses.Pulses`. As old as one look at the queues."""

    __slots__ = ("_book", "_last", "_told", "queue")

    def __init__(self, book: PulseBook, queue: RemoteQueue, told: Pulse):
        self.queue = queue
        self._book = book
        self._told: Pulse | None = None
        self._last = told

    def take(self) -> Pulse:
        """The very same object as before where nothing changed."""
        told = self._book.last(self.queue.uid)
        if told is None:
            return self._last
        # Other gateways' consumers are known by what they wait for and by what they hold.
        consumers = max(self.queue.consumers, told.consumers, min(1, told.in_flight))
        if told is not self._told or consumers != self._last.consumers:
            fresh = told._replace(consumers=consumers)
            self._told = told
            if fresh != self._last:
                self._last = fresh
        return self._last


class PulseBook:
    """The last pulses of all queues, by uid. Asking for one has all of them asked for, where they are old."""

    def __init__(self, store: RemoteBackends):
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._pulses: dict[int, Pulse] = {}
        self._of_home: dict[Home, dict[int, Pulse]] = {}
        self._at = float("-inf")
        self._asking: asyncio.Task[None] | None = None

    def of(self, definition: QueueDefinition) -> RemotePulses | None:
        """None for a queue that is gone, and until its first pulse is here."""
        told = self.last(definition.uid)
        if told is None:
            return None
        try:
            return RemotePulses(self, self._store.here(definition.tenant, definition.name), told)
        except (QueueNotFound, ClusterAway):
            return None

    def last(self, uid: int) -> Pulse | None:
        is_old = self._loop.time() >= self._at + PULSES_FRESH_SECONDS
        if is_old and (self._asking is None or self._asking.done()):
            self._asking = self._store.background(self._ask())
        return self._pulses.get(uid)

    async def _ask(self) -> None:
        try:
            pages = await asyncio.gather(*map(self._ask_of, self._store.homes))
        finally:
            self._at = self._loop.time()
        before = self._pulses
        found: dict[int, Pulse] = {}
        async for some in _portions(row for page in pages for row in page.items()):
            found.update((uid, _both(found[uid], pulse) if uid in found else pulse) for uid, pulse in some)  # two lanes
        kept: dict[int, Pulse] = {}
        async for some in _portions(found.items()):
            kept.update((uid, known if (known := before.get(uid)) == one else one) for uid, one in some)
        self._pulses = kept

    async def _ask_of(self, home: Home) -> dict[int, Pulse]:
        """Of one shard, by the clock of `steady_ms`; while nobody leads that, what was known last stays."""
        if not home.is_ours:
            return {}  # another home cluster's queues have numbers that ours have, too
        found: dict[int, Pulse] = {}
        after = 0
        try:
            while True:
                page = _pulses(await home.ask(TakePulses(after), may_repeat=True))
                ahead_ms = home.skew_ms - self._store.first.skew_ms
                found.update((uid, _earlier(pulse, ahead_ms)) for uid, pulse in page)
                if len(page) < PULSES_PER_ASK_MAX:
                    self._of_home[home] = found
                    return found
                after = page[-1][0]
        except PushqError:
            return self._of_home.get(home, {})


async def _portions(rows: Iterable[tuple[int, Pulse]]) -> AsyncIterator[list[tuple[int, Pulse]]]:
    """As many as one page has, with others' turns between: those of very many queues must hold nobody up."""
    rest = iter(rows)
    while some := list(islice(rest, PULSES_PER_ASK_MAX)):
        yield some
        await asyncio.sleep(0)


def _earlier(pulse: Pulse, ahead_ms: int) -> Pulse:
    since_ms = pulse.oldest_since_ms
    return pulse._replace(oldest_since_ms=since_ms - ahead_ms) if since_ms and ahead_ms else pulse


def _both(one: Pulse, other: Pulse) -> Pulse:
    oldest = [pulse.oldest_since_ms for pulse in (one, other) if pulse.oldest_since_ms]
    whole = Pulse(*(mine + theirs for mine, theirs in zip(one, other, strict=True)))
    return whole._replace(oldest_since_ms=min(oldest, default=0), consumers=max(one.consumers, other.consumers))
