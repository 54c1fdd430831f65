"""Pulses (current numbers) of all queues at backends: the gateway asks for changes since its last question, and serves
the last answer meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from backend_store.client.pulses import Pulse
from backend_store.model import ClusterAway, PushqError, QueueDefinition, QueueNotFound
from backend_store.node.touched import Touched
from backend_store.remote.limits import NEWS_WAIT_SECONDS_MAX, PULSES_FRESH_SECONDS
from backend_store.remote.queues.queue import RemoteQueue
from backend_store.service.limits import PULSES_PER_ASK_MAX
from backend_store.service.pulses import AsOf, PulseNews, PulseRow, TakePulses

if TYPE_CHECKING:
    from backend_store.remote.home import Home
    from backend_store.remote.store import RemoteBackends

_news = msgspec.msgpack.Decoder(list[PulseRow] | PulseNews).decode
_rows = msgspec.msgpack.Decoder(list[PulseRow]).decode


class RemotePulses:
    """The pulses of one queue; has the shape of `client.pulses.Pulses`. Its numbers are those of the last request."""

    __slots__ = ("_book", "_last", "_told", "queue")

    def __init__(self, book: PulseBook, queue: RemoteQueue, told: Pulse):
        self.queue = queue
        self._book = book
        self._told: Pulse | None = None
        self._last = told

    def take(self) -> Pulse:
        """Returns the present pulse: the same object as before if nothing changed."""
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


class _Told:
    """The pulses that one shard reported."""

    def __init__(self) -> None:
        self.since = AsOf()
        """Up to which change the shard has reported."""
        self.pulses: dict[int, Pulse] = {}
        """By uid; times are by the shard's own clock."""
        self.ahead_ms = 0
        """How far the shard's clock is ahead of `steady_ms`."""


class PulseBook:
    """The last pulses of all queues, by uid; `RemoteBackends` owns it. Reading one starts a request for all changes if
    the pulses are old."""

    def __init__(self, store: RemoteBackends):
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._pulses: dict[int, Pulse] = {}
        self._told: dict[Home, _Told] = {}
        self._changed: set[int] = set()
        """Uids with news that are not summed up yet."""
        self._at = float("-inf")
        self._asking: asyncio.Task[None] | None = None
        self._asks_for_all = False
        """A backend of an earlier version reports all pulses each time, not just changes."""
        self._touched: Touched[int] = Touched(tuple)
        """Uids of queues that may have changed, for `listen`."""

    def of(self, definition: QueueDefinition) -> RemotePulses | None:
        """The pulses of a queue; None if it is deleted, or its first pulse has not arrived."""
        told = self.last(definition.uid)
        if told is None:
            return None
        try:
            return RemotePulses(self, self._store.here(definition.tenant, definition.name), told)
        except QueueNotFound:
            return None
        except ClusterAway:
            self.touch(definition.uid)  # so that listeners look at it again
            return None

    def last(self, uid: int) -> Pulse | None:
        self._refresh()
        return self._pulses.get(uid)

    def listen(self) -> Callable[[], set[int]]:
        """Returns a function that gives the uids of queues whose pulse may have changed since its last call."""
        heard = self._touched.listen()

        def take() -> set[int]:
            self._refresh()
            return heard()

        return take

    def touch(self, uid: int) -> None:
        """Marks a queue as changed in a way that its pulse does not show, or not yet."""
        self._touched.add(uid)

    async def refresh(self) -> None:
        """Returns once the pulses include all that happened until now, or after `NEWS_WAIT_SECONDS_MAX`."""
        if self._asks_for_all:
            self._refresh()  # no more often than `PULSES_FRESH_SECONDS`, as asking for all is expensive
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(NEWS_WAIT_SECONDS_MAX):
                if self._asking is not None:
                    await asyncio.wait([self._asking])  # its answer may be from before this call
                if self._asking is None or self._asking.done():
                    self._asking = self._store.background(self._ask())
                await asyncio.wait([self._asking])

    def _refresh(self) -> None:
        is_old = self._loop.time() >= self._at + PULSES_FRESH_SECONDS
        if is_old and (self._asking is None or self._asking.done()):
            self._asking = self._store.background(self._ask())

    async def _ask(self) -> None:
        homes = self._store.homes
        for home in self._told.keys() - set(homes):
            self._changed.update(self._told.pop(home).pulses)
        self._asks_for_all = False
        try:
            await asyncio.gather(*map(self._ask_of, homes))
        finally:
            self._at = self._loop.time()
        # In slices, so that summing up very many queues does not block the event loop.
        while some := list(islice(self._changed, PULSES_PER_ASK_MAX)):
            for uid in some:
                self._add_up(uid)
            self._changed.difference_update(some)
            await asyncio.sleep(0)

    async def _ask_of(self, home: Home) -> None:
        """Takes over the news of one shard; while it has no leader, its last pulses stay."""
        told = self._told.setdefault(home, _Told())
        if not home.is_ours:  # another home cluster's queues may have the same uids as ours
            self._changed.update(told.pulses)
            self._told[home] = _Told()
            return
        ahead_ms = home.skew_ms - self._store.first.skew_ms
        if ahead_ms != told.ahead_ms:
            self._changed.update(told.pulses)
            told.ahead_ms = ahead_ms
        with suppress(PushqError):
            while True:
                news = _news(await home.ask(TakePulses(since=told.since), may_repeat=True))
                if not isinstance(news, PulseNews):
                    self._asks_for_all = True
                    await self._take_all(home, told, news)
                    return
                if news.is_reset:
                    await self._take_all(home, told, await _page(home, 0))
                    told.since = news.now
                    return
                self._take(told, news)
                if news.is_last:
                    return

    def _take(self, told: _Told, news: PulseNews) -> None:
        told.since = news.now
        told.pulses.update(news.pulses)
        self._changed.update(uid for uid, _ in news.pulses)
        for uid in news.gone:
            told.pulses.pop(uid, None)
            self._changed.add(uid)

    async def _take_all(self, home: Home, told: _Told, page: list[PulseRow]) -> None:
        """Takes over all pulses of a shard. `page`: the first page of them."""
        found = dict(page)
        while len(page) >= PULSES_PER_ASK_MAX:
            page = await _page(home, page[-1][0])
            found.update(page)
        self._changed.update(told.pulses, found)
        told.pulses = found

    def _add_up(self, uid: int) -> None:
        """Sums up a queue's pulse over its lanes and places."""
        found: Pulse | None = None
        for told in self._told.values():
            if (pulse := told.pulses.get(uid)) is not None:
                here = _earlier(pulse, told.ahead_ms)
                found = here if found is None else _both(found, here)
        if found is None:
            if self._pulses.pop(uid, None) is not None:
                self._touched.add(uid)
        else:
            if found != self._pulses.get(uid):
                self._pulses[uid] = found
            self._touched.add(uid)  # even if the pulse is equal, other numbers of the queue may differ


async def _page(home: Home, after: int) -> list[PulseRow]:
    return _rows(await home.ask(TakePulses(after), may_repeat=True))


def _earlier(pulse: Pulse, ahead_ms: int) -> Pulse:
    since_ms = pulse.oldest_since_ms
    return pulse._replace(oldest_since_ms=since_ms - ahead_ms) if since_ms and ahead_ms else pulse


def _both(one: Pulse, other: Pulse) -> Pulse:
    oldest = [pulse.oldest_since_ms for pulse in (one, other) if pulse.oldest_since_ms]
    whole = Pulse(*(mine + theirs for mine, theirs in zip(one, other, strict=True)))
    return whole._replace(oldest_since_ms=min(oldest, default=0), consumers=max(one.consumers, other.consumers))
