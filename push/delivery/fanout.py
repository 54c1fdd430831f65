"""Tails a stream once for all its subscribers: each committed chunk is encoded once per encoding and fanned out.

A subscriber is *live* while it stands at the end of every partition and its socket takes bytes; live subscribers share
frames. Any other subscriber reads the log at its own pace, a few chunks a turn, and becomes live in the same step in
which it reaches the end, so that no message is missed or repeated in between.

Live subscribers need no barrier between partitions: a key is opened in its new partition only after its last message in
the old one was sent to them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Protocol

import structlog

from backend_store.client import Chunk, Gap, Queue, cursors_along, encode_cursor
from backend_store.model import PushqError
from push.delivery.lookup_retry import LookingUp
from push.delivery.replay_pacer import Pacer
from push.delivery.stream_reader import Others, Tail, Tails
from push.delivery.wait_times import WaitTimes
from push.encoding.deliveries import deliver_frame, keep_rendered, stream_messages, visible
from push.encoding.lease import first_shown, said_of
from push.limits import FETCH_AGAIN_SECONDS
from push.session.subscriptions import StreamSubscription

if TYPE_CHECKING:
    from push.spans import Batch, Spans

log = structlog.get_logger("pushq.hub")

PACED = "paced"


class StreamOutlet(Protocol):
    @property
    def writable(self) -> bool: ...
    def write(self, data: bytes) -> None:
        """Hands encoded bytes to the socket."""

    def tell_gap(self, number: int, gap: Gap) -> None:
        """Sends which offsets the subscriber will never get."""

    def tell_reset(self, number: int, cursor: str) -> None:
        """Sends the cursor that the subscriber goes on from: some of the messages that it was sent are no longer in the
        log."""

    def delivered(self, queue: Queue, messages: int, size: int, batch: Batch | None) -> None:
        """Counts messages of the queue that were handed to the socket. `batch` is set if spans are wanted."""


Framer = Callable[[Chunk, int, int, int, Others], bytes]
"""(chunk, start, stop, subscription number, where the reader stands in other partitions) → bytes for the socket."""


def _uncounted(messages: int) -> None:
    """Default of `count_unshown`."""


class Fanout:
    """The tails and subscribers of one stream. `Hub.fanout` makes it; the queue keeps it."""

    def __init__(
        self,
        queue: Queue,
        loop: asyncio.AbstractEventLoop,
        framers: dict[str, Framer],
        count: Callable[[int], None],
        pacer: Pacer | None = None,
        spans: Spans | None = None,
        waits: Mapping[str, WaitTimes] | None = None,
        count_unshown: Callable[[int], None] = _uncounted,
    ):
        """`count` is called with the number of messages handed to sockets, `count_unshown` with the number of messages
        that cannot be shown to any reader. `pacer` is the process's one; `waits` are keyed by framer."""
        self._count = count
        self._count_unshown = count_unshown
        self._spans = spans
        self._waits = {key: WaitTimes() for key in framers} if waits is None else waits
        self.queue = queue
        self._loop = loop
        self._pacer = pacer or Pacer(loop)
        self.tails = Tails(queue.parts)
        self._ends: Mapping[int, int] = self.tails.ends()
        """Offsets at which all live subscribers stand. Replaced, never changed: a subscriber that stops being live
        keeps the mapping as its places."""
        self._epochs = self.tails.epochs()
        """Epochs of the logs that `_ends` is about. Replaced, never changed."""
        self._framers = framers
        self._live: dict[tuple[str, int], dict[StreamSubscription, StreamOutlet]] = {}
        self.waiting: set[asyncio.Future[None]] = set()
        """Long-polls at the end of the stream."""
        self._listen(self.tails.all)
        queue.parts.on_changed(self._partitions_changed)

    def _listen(self, tails: list[Tail]) -> None:
        for tail in tails:
            tail.part.on_appended(partial(self._appended, tail))
            tail.part.on_trimmed(partial(self._trimmed, tail))
            tail.part.on_replaced(partial(self._replaced, tail))

    def start(self, sub: StreamSubscription, outlet: StreamOutlet) -> None:
        """Starts to deliver from where the subscription stands, in the next turn of the loop."""
        if sub.live or sub.feeding or sub.stopped:
            return
        sub.feeding = True
        if self.tails.is_near(sub.reading):
            self._loop.call_soon(self._feed_latest, sub, outlet)
        else:
            self._pacer.add(partial(self._feed, sub, outlet))

    def allow(self, sub: StreamSubscription, credit: int, outlet: StreamOutlet) -> None:
        """Adds `credit` messages to a subscriber's credit; one without a limit gets this limit."""
        self._leave(sub)
        sub.credit = credit if sub.credit is None else sub.credit + credit
        self.start(sub, outlet)

    def stop(self, sub: StreamSubscription) -> None:
        sub.stopped = True
        self._leave(sub)
        if not self._live:
            self.tails.forget()

    def _leave(self, sub: StreamSubscription) -> None:
        if sub.live:
            sub.live = False
            sub.reading.stand_at(self._ends, self._epochs)
            group = self._group(sub)
            members = self._live[group]
            del members[sub]
            if not members:
                del self._live[group]

    # ------------------------------------------------------------------------ commits, trims and changed partitions

    def _appended(self, tail: Tail, chunks: list[Chunk]) -> None:
        last = chunks[-1]
        tail.latest = chunks[0].base
        count = sum(c.count for c in chunks)
        self._wake_polls()
        others = self.tails.others(tail, self._ends) if self._live else None
        batch = None if self._spans is None or not self._live else self._spans.of_chunks(chunks)
        for (key, number), members in list(self._live.items()):
            if key == PACED:
                self._wake(members)
                continue
            framer = self._framers[key]
            try:
                data = b"".join([framer(chunk, 0, chunk.count, number, others) for chunk in chunks])
            except Exception:
                # Each subscriber reads these chunks by itself, in its own turn: they must not be skipped.
                log.exception("published messages could not be delivered to readers", queue=self.queue.name)
                self._wake(members)
                continue
            behind = []
            for sub, outlet in members.items():
                if outlet.writable:
                    try:
                        outlet.write(data)
                        outlet.delivered(self.queue, count, len(data), batch)
                    except Exception:
                        # A bug in one reader must not take the others' messages from them.
                        log.exception("a live reader failed", queue=self.queue.name)
                        behind.append(sub)
                        continue
                    sub.messages_sent += count
                else:
                    behind.append(sub)
            reached = len(members) - len(behind)
            self._count(count * reached)
            for chunk in chunks:
                self._waits[key].of_chunk(chunk, chunk.count * reached)
            for sub in behind:
                self._leave(sub)
        self._ends = {**self._ends, tail.number: last.base + last.count}

    def _trimmed(self, tail: Tail) -> None:
        """Moves the live subscribers past what was trimmed: they have had all of it. Others learn what they miss when
        they read on."""
        tail.chunks.clear()
        if (lost := tail.lost(self._ends)) is not None:
            self._ends = {**self._ends, tail.number: lost[1] + 1}

    def _replaced(self, tail: Tail) -> None:
        """Wakes live subscribers that were sent what is no longer in the log: they are told, like the others, when they
        read on."""
        tail.chunks.clear()
        number = tail.number
        parted = tail.parted(self._epochs[number], self._ends[number])
        if parted is not None:
            self._wake_all()
            tail.latest = int(tail.part.end)
            self._ends = {**self._ends, number: tail.latest}
            self._wake_polls()
        self._epochs = {**self._epochs, number: tail.part.epochs}

    def _partitions_changed(self) -> None:
        """Moves live subscribers on to new partitions; where messages are stored there already, they read those
        first. Subscribers that go on in another cluster are told what is gone there."""
        if self.tails.are_lost():
            self._wake_all()  # they get `reset`, as their places say what they had read
            self._wake_polls()
        came, went = self.tails.refresh()
        stayed = {number: place for number, place in self._ends.items() if number not in went}
        self._ends = {**stayed, **{tail.number: tail.born for tail in came}}
        self._epochs = self.tails.epochs()  # of those that stayed it was told before where they go on otherwise
        self._listen(came)
        lost = {tail.number: lost[1] + 1 for tail in self.tails.all if (lost := tail.lost(self._ends)) is not None}
        if lost or any(not tail.part.is_empty for tail in came):
            self._wake_all()
        self._ends = {**stayed, **lost, **{tail.number: int(tail.part.end) for tail in came}}

    # ------------------------------------------------------------------------------------------------- catching up

    def _feed_latest(self, sub: StreamSubscription, outlet: StreamOutlet) -> None:
        """Sends a live reader with credit its part of a commit, without waiting for the readers that replay."""
        while self._feed(sub, outlet):
            if not self.tails.is_near(sub.reading):
                self._pacer.add(partial(self._feed, sub, outlet))
                return

    def _feed(self, sub: StreamSubscription, outlet: StreamOutlet) -> bool:
        """Hands on the next chunk. False once the reader is live, or cannot take more now."""
        sub.feeding = False
        if sub.stopped or not outlet.writable or sub.credit == 0:
            return False  # `start` is called again when there is room or credit
        if self.tails.rewound(sub.reading):
            outlet.tell_reset(sub.number, self.tails.cursor(sub.reading))
        for gap in self.tails.missed(sub.reading):
            outlet.tell_gap(sub.number, gap)
        try:
            found = self.tails.next(sub.reading)
        except LookingUp as looking:
            looking.flight.wanted(inf)
            looking.flight.then(partial(self._fetched, sub, outlet))
            return False
        if found is None:
            self._join(sub, outlet)
            return False
        self._hand_on(sub, outlet, *found)
        sub.feeding = True
        return True

    def _fetched(self, sub: StreamSubscription, outlet: StreamOutlet, error: PushqError | None) -> None:
        """Resumes a reader whose next messages had to be fetched first."""
        self._loop.call_later(FETCH_AGAIN_SECONDS if error is not None else 0, self.start, sub, outlet)

    def _join(self, sub: StreamSubscription, outlet: StreamOutlet) -> None:
        """Makes a subscriber live. One with credit may be owed a part of a chunk: it is woken, not written to."""
        sub.live = True
        self._live.setdefault(self._group(sub), {})[sub] = outlet

    def _group(self, sub: StreamSubscription) -> tuple[str, int]:
        return (sub.key, sub.number) if sub.credit is None else (PACED, 0)

    def _wake_polls(self) -> None:
        for ready in self.waiting:
            if not ready.done():
                ready.set_result(None)

    def _wake_all(self) -> None:
        for members in list(self._live.values()):
            self._wake(members)

    def _wake(self, members: dict[StreamSubscription, StreamOutlet]) -> None:
        for sub, outlet in list(members.items()):
            self._leave(sub)
            self.start(sub, outlet)

    def _hand_on(self, sub: StreamSubscription, outlet: StreamOutlet, tail: Tail, chunk: Chunk) -> None:
        reading = sub.reading
        start = max(0, tail.place(reading) - chunk.base)
        stop = chunk.count if sub.credit is None else min(chunk.count, start + sub.credit)
        others = self.tails.others(tail, reading.places)
        try:
            data = self._framers[sub.key](chunk, start, stop, sub.number, others)
        except Exception as error:
            stop, found = first_shown(
                chunk, start, stop, lambda end: self._framers[sub.key](chunk, start, end, sub.number, others)
            )
            if found is None:
                log.error("messages of a stream cannot be delivered", **said_of(self.queue, chunk, start, stop, error))
                self._count_unshown(stop - start)
                outlet.tell_gap(sub.number, self.tails.pass_over(reading, tail, chunk.base + start, chunk.base + stop))
                return
            data = found
        batch = None if self._spans is None else self._spans.of_parts([(chunk, range(start, stop))])
        outlet.write(data)
        shown = len(visible(chunk, start, stop))
        outlet.delivered(self.queue, shown, len(data), batch)
        self._count(shown)
        if chunk.time_ms >= sub.since_ms:
            self._waits[sub.key].of_chunk(chunk, shown)
        sub.messages_sent += shown
        if sub.credit is not None:
            sub.credit -= shown
        reading.move(tail.number, chunk.base + stop)


def websocket_framer(encoding: str, frame: Callable[[bytes], bytes]) -> Framer:
    """Frames of a WebSocket encoding; `frame` adds the WebSocket header. A chunk's frames are cached with the chunk."""

    def framer(chunk: Chunk, start: int, stop: int, number: int, others: Others = None) -> bytes:
        cursor = cursor_after(chunk, stop, others) if others is not None else ""
        key = (encoding, start, stop, number, cursor)
        data: bytes | None = chunk.rendered.get(key)
        if data is None:
            messages = stream_messages(chunk, start, stop, "json" if encoding == "json" else "msgpack")
            cursor = cursor or cursor_after(chunk, stop, others)
            data = frame(deliver_frame(number, messages, "json" if encoding == "json" else "msgpack", cursor))
            keep_rendered(chunk, key, data)
        return data

    return framer


def cursor_after(chunk: Chunk, stop: int, others: Others) -> str:
    """The cursor from which a reader resumes after a part of a chunk."""
    if others is None:
        return encode_cursor(chunk.epoch, chunk.base + stop, uid=chunk.uid)
    return cursors_along(others, chunk.partition, chunk.epoch, uid=chunk.uid)(chunk.base + stop)
