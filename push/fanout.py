"""A stream's tail, read once and fanned out: each committed chunk is encoded once per encoding and written to
everybody.

A subscriber is *live* while it stands at the end and its socket takes bytes; live ones share frames. Any other reads
the log at its own pace, a few chunks a turn, and joins the live ones in the same breath in which it reaches the end,
so nothing is missed or repeated in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol

from backend_store.client import Chunk, Queue, encode_cursor
from backend_store.model import Offset
from push.encode import deliver_frame, keep_rendered, stream_messages, visible
from push.limits import CHUNK_CACHE_MAX
from push.pacing import Pacer
from push.subscriptions import StreamSubscription

PACED = "paced"


class StreamOutlet(Protocol):
    @property
    def writable(self) -> bool: ...
    def write(self, data: bytes) -> None:
        """Hands encoded bytes to the socket."""

    def tell_gap(self, number: int, first: int, last: int) -> None:
        """Says which offsets the subscriber will never get."""


Framer = Callable[[Chunk, int, int, int], bytes]
"""(chunk, start, stop, subscription number) → bytes ready for the socket."""


class Fanout:
    def __init__(
        self,
        queue: Queue,
        loop: asyncio.AbstractEventLoop,
        framers: dict[str, Framer],
        count: Callable[[int], None],
        pacer: Pacer | None = None,
    ):
        """`count` is told how many messages were handed to sockets. `pacer` is the process's one."""
        self._count = count
        self.queue = queue
        self._loop = loop
        self._pacer = pacer or Pacer(loop)
        self._latest = queue.end.offset
        """Where the last commit's chunks begin: who stands there is as good as live."""
        self._framers = framers
        self._live: dict[tuple[str, int], dict[StreamSubscription, StreamOutlet]] = {}
        self._chunks: dict[int, Chunk] = {}
        self.waiting: set[asyncio.Future[None]] = set()
        """Long-polls at the end of the stream."""
        queue.on_appended(self._appended)
        queue.on_purged(self._purged)

    def start(self, sub: StreamSubscription, outlet: StreamOutlet) -> None:
        """Begins to deliver from the subscription's position, in the next turn of the loop."""
        if sub.live or sub.feeding or sub.stopped:
            return
        sub.feeding = True
        if sub.position >= self._latest:
            self._loop.call_soon(self._feed_latest, sub, outlet)
        else:
            self._pacer.add(partial(self._feed, sub, outlet))

    def allow(self, sub: StreamSubscription, credit: int, outlet: StreamOutlet) -> None:
        """Lets a subscriber have `credit` more messages; one that had no limit gets one."""
        self._leave(sub)
        sub.credit = credit if sub.credit is None else sub.credit + credit
        self.start(sub, outlet)

    def stop(self, sub: StreamSubscription) -> None:
        sub.stopped = True
        self._leave(sub)
        if not self._live:
            self._chunks.clear()

    def _leave(self, sub: StreamSubscription) -> None:
        if sub.live:
            sub.live = False
            group = self._group(sub)
            members = self._live[group]
            del members[sub]
            if not members:
                del self._live[group]

    def _appended(self, chunks: list[Chunk]) -> None:
        last = chunks[-1]
        self._latest = chunks[0].base
        end = Offset(last.base + last.count)
        count = sum(c.count for c in chunks)
        for ready in self.waiting:
            if not ready.done():
                ready.set_result(None)
        for (key, number), members in list(self._live.items()):
            if key == PACED:
                self._wake_paced(members)
                continue
            framer = self._framers[key]
            data = b"".join([framer(chunk, 0, chunk.count, number) for chunk in chunks])
            behind = []
            for sub, outlet in members.items():
                if outlet.writable:
                    outlet.write(data)
                    sub.position = end
                else:
                    behind.append(sub)
            self._count(count * (len(members) - len(behind)))
            for sub in behind:
                self._leave(sub)

    def _purged(self) -> None:
        """Live subscribers have had all that is gone; the others learn what they miss when they go on."""
        self._chunks.clear()
        for members in self._live.values():
            for sub in members:
                sub.position = max(sub.position, self.queue.floor)

    def _feed_latest(self, sub: StreamSubscription, outlet: StreamOutlet) -> None:
        """What a live reader with credit gets of a commit: it does not wait for those who replay."""
        while self._feed(sub, outlet):
            if sub.position < self._latest:
                self._pacer.add(partial(self._feed, sub, outlet))
                return

    def _feed(self, sub: StreamSubscription, outlet: StreamOutlet) -> bool:
        """Hands on the next chunk. False when the reader has joined the live ones, or cannot take more now."""
        sub.feeding = False
        if sub.stopped or not outlet.writable or sub.credit == 0:
            return False  # `start` is called again when there is room or credit
        if sub.position < self.queue.floor:
            outlet.tell_gap(sub.number, sub.position, self.queue.floor - 1)
            sub.position = self.queue.floor
        if sub.position >= self.queue.end.offset:
            self._join(sub, outlet)
            return False
        if not self._feed_chunk(sub, outlet):
            sub.position = self.queue.end.offset
        sub.feeding = True
        return True

    def _join(self, sub: StreamSubscription, outlet: StreamOutlet) -> None:
        """Counts a subscriber among the live. One with credit may be owed a part of a chunk: it is woken, not written
        to.
        """
        sub.live = True
        self._live.setdefault(self._group(sub), {})[sub] = outlet

    def _group(self, sub: StreamSubscription) -> tuple[str, int]:
        return (sub.key, sub.number) if sub.credit is None else (PACED, 0)

    def _wake_paced(self, members: dict[StreamSubscription, StreamOutlet]) -> None:
        for sub, outlet in list(members.items()):
            self._leave(sub)
            self.start(sub, outlet)

    def _feed_chunk(self, sub: StreamSubscription, outlet: StreamOutlet) -> bool:
        chunk = self._read(sub.position)
        if chunk is None:
            return False
        start = max(0, sub.position - chunk.base)
        stop = chunk.count if sub.credit is None else min(chunk.count, start + sub.credit)
        outlet.write(self._framers[sub.key](chunk, start, stop, sub.number))
        shown = len(visible(chunk, start, stop))
        self._count(shown)
        if sub.credit is not None:
            sub.credit -= shown
        sub.position = Offset(chunk.base + stop)
        return True

    def _read(self, position: Offset) -> Chunk | None:
        """The chunk at a position; those that many catch up through together are decoded once."""
        for chunk in self._chunks.values():
            if chunk.base <= position < chunk.base + chunk.count:
                return chunk
        found = self.queue.read(position)
        if found is not None:
            while len(self._chunks) >= CHUNK_CACHE_MAX:
                self._chunks.pop(next(iter(self._chunks)))
            self._chunks[found.base] = found
        return found


def websocket_framer(encoding: str, frame: Callable[[bytes], bytes]) -> Framer:
    """Frames of a WebSocket encoding; `frame` adds the WebSocket header. A chunk's frames are kept with it."""

    def framer(chunk: Chunk, start: int, stop: int, number: int) -> bytes:
        key = (encoding, start, stop, number)
        data: bytes | None = chunk.rendered.get(key)
        if data is None:
            messages = stream_messages(chunk, start, stop, "json" if encoding == "json" else "msgpack")
            cursor = encode_cursor(chunk.epoch, chunk.base + stop)
            data = frame(deliver_frame(number, messages, "json" if encoding == "json" else "msgpack", cursor))
            keep_rendered(chunk, key, data)
        return data

    return framer
