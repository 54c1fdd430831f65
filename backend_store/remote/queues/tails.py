"""The partitions of a stream at a backend, as the gateway's readers see them; has the shape of `client.streams`.

The backend reports the end of each partition. The gateway fetches chunks and caches them for a moment: chunks at the
tail once for all readers there, older chunks for the reader that wants them, which starts again when they arrive. Here
a partition ends at the last chunk that was fetched, so no reader learns of an end before its messages are here.

A leader of mode `async` that is lost may take messages with it that were read here already. The next leader's log is
another epoch: the gateway forgets what it has beyond the point where the two logs part, and tells readers that had read
further.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from backend_store.client.streams import Start, position_in
from backend_store.core.log.chunk import Chunk
from backend_store.core.log.cursor import encode_positions, where_they_part
from backend_store.core.log.records import EpochStart
from backend_store.core.partitions.slot_history import Barrier
from backend_store.model import Epoch, Offset, PushqError, Unavailable
from backend_store.node.limits import EPOCHS_MAX
from backend_store.remote.limits import (
    READ_BYTES_MAX,
    TAIL_BYTES_MAX,
    TAIL_IDLE_SECONDS,
    TAIL_RETRY_SECONDS,
    TAIL_WAIT_SECONDS_MAX,
)
from backend_store.remote.queues.ranges import opened
from backend_store.service.ranges import Pieces, ReadRange
from backend_store.service.tailing import Started, StartReading
from backend_store.wire.store_frames import PartNow, Want

if TYPE_CHECKING:
    from backend_store.remote.queues.queue import RemoteQueue
    from backend_store.remote.queues.streams import RemoteStream

log = structlog.get_logger("pushq.remote")

_pieces = msgspec.msgpack.Decoder(Pieces).decode
started = msgspec.msgpack.Decoder(Started).decode
PAGE_MESSAGES_MAX = 5_000


class Shelf:
    """A cache of fetched chunks of one partition, each under the offset from which it is the next. Holds
    `TAIL_BYTES_MAX`; the oldest leave first."""

    def __init__(self) -> None:
        self._next: dict[int, Chunk | int] = {}
        """Offset → the chunk that contains or follows it; or the offset up to which there is none."""
        self._bytes = 0

    def put(self, start: int, chunks: list[Chunk], until: int) -> None:
        """Stores the chunks that are all there is from `start` up to `until`."""
        for chunk in chunks:
            if start not in self._next:
                self._next[start] = chunk
                self._bytes += len(chunk.data)
            start = chunk.base + chunk.count
        if start < until:
            self._next[start] = until
        while self._bytes > TAIL_BYTES_MAX and len(self._next) > 1:
            oldest = self._next.pop(next(iter(self._next)))
            self._bytes -= len(oldest.data) if isinstance(oldest, Chunk) else 0

    def find(self, offset: int, end: int) -> Chunk | bool:
        """The first chunk that contains or follows an offset; True if there is none below `end`, False if unknown."""
        while offset < end:
            found = self._next.get(offset)
            if found is None:
                return next((one for one in self._chunks() if one.base < offset < one.base + one.count), False)
            if isinstance(found, Chunk):
                return found
            offset = found
        return True

    def _chunks(self) -> Iterator[Chunk]:
        return (one for one in self._next.values() if isinstance(one, Chunk))


class RemotePart:
    """One partition; has the shape of `client.streams.StreamPart`. `RemoteParts` owns it."""

    def __init__(self, parts: RemoteParts, now: PartNow):
        self._parts = parts
        self.number = now.number
        self.now = now
        self.epochs = _epochs(now)
        """The epochs and where they start. The list object stays the same while the log stays in one epoch."""
        self._shelf = Shelf()
        self._end = now.end
        self.appended: Callable[[list[Chunk]], None] = _ignored
        self._trimmed: Callable[[], None] = _nothing
        self._replaced: Callable[[], None] = _nothing

    @property
    def epoch(self) -> Epoch:
        return Epoch(self.now.epoch)

    @property
    def floor(self) -> Offset:
        return Offset(self.now.floor)

    @property
    def end(self) -> Offset:
        return Offset(self._end)

    @property
    def is_empty(self) -> bool:
        return self.now.is_empty

    @property
    def barriers(self) -> list[Barrier]:
        return [Barrier(*one) for one in self.now.barriers]

    def lost_at(self, places: Mapping[int, int]) -> tuple[int, int] | None:
        """See `client.streams.StreamPart.lost_at`."""
        place = places.get(self.number, self.floor)
        return (place, self.floor - 1) if place < self.floor else None

    def read(self, offset: int) -> Chunk | None:
        """The first stored chunk that contains or follows `offset`; None if there is none. Raises `LookingUp`."""
        at = max(offset, self.floor)
        found = self._shelf.find(at, self._end)
        if found is False:
            stream = self._parts.stream
            what = f"messages of {stream.name!r} from {at} on"
            chunks = stream.known(what, f"read {self.number} {self.epoch} {at}", lambda: self.fetch(at))
            return chunks[0] if chunks else None
        return found if isinstance(found, Chunk) else None

    def has_none_from(self, offset: int) -> bool:
        """Whether it is known here that there is nothing from an offset on."""
        return self._shelf.find(max(offset, self.floor), self._end) is True

    def is_done_from(self, offset: int) -> bool:
        """Whether it is known here that nothing is there from an offset on, and that nothing was."""
        return self.has_none_from(offset) and (offset >= self.floor or self._shelf.find(offset, self.floor) is True)

    def on_appended(self, appended: Callable[[list[Chunk]], None]) -> None:
        self.appended = appended

    def on_trimmed(self, trimmed: Callable[[], None]) -> None:
        self._trimmed = trimmed

    def on_replaced(self, replaced: Callable[[], None]) -> None:
        self._replaced = replaced

    def take(self, now: PartNow, *, may_go_back: bool) -> None:
        """Takes over news of the partition. `may_go_back`: to an older epoch, as after a backup was restored."""
        before = self.now
        if now.epoch < before.epoch and not may_go_back:
            return  # late news of a former leader
        self.now = now
        if now.epoch != before.epoch:
            self._goes_on_in_another()
        if now.floor > before.floor:
            self._end = max(self._end, now.floor)
            self._trimmed()

    def _goes_on_in_another(self) -> None:
        before, told = self.epochs, _epochs(self.now)
        # If our list contains the first epoch of the news, what we have before it is of the same log.
        older = next((index for index, start in enumerate(before) if told and start == told[0]), 0)
        self.epochs = [*before[:older], *told][-EPOCHS_MAX:]
        self._shelf = Shelf()  # also chunks beyond our end, which a reader may have fetched
        parted = where_they_part(before, self.epochs, self._end)
        if parted is not None:
            log.warning("a stream goes on without its end", queue=self._parts.stream.name, partition=self.number)
            # At or below the floor, what the logs share is unknown: readers start again, and the rest is not awaited.
            self._end = parted if parted > self.floor else self.now.end
        self._replaced()

    async def fetch(self, at: int) -> list[Chunk]:
        """Fetches the next chunks from an offset on. Raises `PushqError`."""
        return (await self.page(at))[0]

    async def page(self, at: int) -> tuple[list[Chunk], int]:
        """As `fetch`; also returns the offset up to which the chunks are complete."""
        stream, epoch = self._parts.stream, self.epoch
        asked = ReadRange(stream.place_there, self.number, at, None, PAGE_MESSAGES_MAX, READ_BYTES_MAX)
        found = _pieces(await stream.ask(asked, may_repeat=True))
        await stream.learnt([piece.chunk for piece in found.pieces])
        chunks = [opened(stream, piece) for piece in found.pieces]
        if not self.epoch == epoch == found.at.epoch:  # the news of the change of leader are on their way
            raise Unavailable(f"stream {stream.name!r} has another leader", retry_after_ms=500)
        self._shelf.put(at, chunks, found.next)
        return chunks, found.next

    def came(self, chunks: list[Chunk], until: int) -> None:
        """Moves the end to `until` and hands these chunks to readers."""
        self._end = max(self._end, until)
        if chunks:
            self.appended(chunks)


class RemoteParts:
    """All partitions of a stream at one place; has the shape of `client.streams.StreamParts`. Its `RemoteStream` owns
    it; it follows the stream for as long as there are readers here."""

    def __init__(
        self,
        stream: RemoteStream,
        whole: RemoteQueue | None = None,
        *,
        began: Callable[[RemoteParts], None] | None = None,
        is_new: bool = False,
    ):
        """`whole`: the queue that has the readers, if not the stream itself. `began` is called once the partitions are
        known, before any of their messages is delivered. `is_new`: readers have all messages from before this place
        and get all of its own."""
        self.stream = stream
        self._reader = whole if whole is not None else stream
        self._began = began
        self._is_new = is_new
        self._loop = asyncio.get_running_loop()
        self._by_number: dict[int, RemotePart] = {}
        self.lost: set[int] = set()
        self._listeners: list[Callable[[], None]] = []
        self._news: list[PartNow] = []
        self._came = asyncio.Event()
        self._moved = asyncio.Event()
        self.used_at = self._loop.time()
        self._is_line_new = True
        """No news have come by the present connection yet."""
        self._may_go_back = False
        """The news include the first of a new connection: whatever epoch they name is the present one."""
        self._task = stream.background(self._follow())
        self.follow()

    @property
    def is_ready(self) -> bool:
        return bool(self._by_number)

    def follow(self) -> None:
        """Tells the backend that there are readers here."""
        self._is_line_new = True
        self._want(1)

    def _want(self, granted: int) -> None:
        self.stream.want(Want(self.stream.place_there, 0, granted, 1))

    async def ready(self) -> None:
        """Returns once the partitions are known. Raises `Unavailable`."""
        await self._until(lambda: self.is_ready)

    async def _until(self, is_so: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(TAIL_WAIT_SECONDS_MAX):
                while not is_so():
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError:
            raise Unavailable(f"stream {self.stream.name!r}: its backend is unreachable", retry_after_ms=500) from None

    def close(self) -> None:
        self._want(0)
        if self._task is not asyncio.current_task():
            self._task.cancel()

    # -------------------------------------------------------------------------------------------- as readers see them

    @property
    def all(self) -> list[RemotePart]:
        return [self._by_number[number] for number in sorted(self._by_number)]

    @property
    def are_several(self) -> bool:
        return len(self._by_number) > 1

    def on_changed(self, changed: Callable[[], None]) -> None:
        self._listeners.append(changed)

    def cursor(self, places: Mapping[int, int]) -> str:
        positions = {part.number: position_in(part, places[part.number]) for part in self.all if part.number in places}
        return encode_positions(positions, uid=self.stream.uid)

    def start(self, wanted: Any) -> Start:
        """Where a reader that wants `wanted` begins. Raises `InvalidRequest`, and `LookingUp`."""
        what = f"a place in {self.stream.name!r}"
        return self.stream.known(what, f"start {wanted!r}", lambda: self.begin(wanted), is_used_up=True)

    async def begin(self, wanted: Any) -> Start:
        """As `start`, asked now; on return, all that was stored by then is known here. Raises `PushqError`."""
        asked = StartReading(self.stream.place_there, wanted)
        start, ends = started(await self.stream.ask(asked, may_repeat=True))
        # A reader that begins at the end must not get earlier messages; any reader must get what was confirmed.
        await self._until(lambda: all(self._is_at(number, end, start.epochs) for number, end in ends.items()))
        return start

    def _is_at(self, number: int, place: int, epochs: Mapping[int, Sequence[EpochStart]]) -> bool:
        part = self._by_number.get(number)
        if part is None:
            return False
        epoch = epochs[number][-1].epoch if epochs.get(number) else part.epoch
        return part.epoch > epoch or (part.epoch == epoch and part.end >= place)

    # ---------------------------------------------------------------------------------------------------- following

    def heard(self, news: list[PartNow]) -> None:
        self._news = news
        self._may_go_back |= self._is_line_new
        self._is_line_new = False
        self._came.set()

    async def _follow(self) -> None:
        while True:
            await self._came.wait()
            self._came.clear()
            if self._is_idle:
                self.stream.forget_parts(self)
                return
            try:
                self._take(self._news)
                while await self._go_on():
                    pass
            except PushqError as error:
                log.info("a stream is read on when its backend is back", queue=self.stream.name, error=error.detail)
                self._loop.call_later(TAIL_RETRY_SECONDS, self._came.set)
            except Exception:
                log.exception("a stream cannot be followed", queue=self.stream.name)
                self._loop.call_later(TAIL_RETRY_SECONDS, self._came.set)
            self._moved.set()

    @property
    def _is_idle(self) -> bool:
        fanout = self._reader.extras.get("fanout")
        is_read = self._reader.consumers > 0 or (fanout is not None and fanout.waiting)
        return not is_read and self._loop.time() > self.used_at + TAIL_IDLE_SECONDS

    def _take(self, news: list[PartNow]) -> None:
        there = {now.number: now for now in news}
        came = [now for now in news if now.number not in self._by_number]
        went = [number for number in self._by_number if number not in there]
        may_go_back, self._may_go_back = self._may_go_back, False
        for number, part in self._by_number.items():
            if number in there:
                part.take(there[number], may_go_back=may_go_back)
        is_first = not self._by_number
        epoch = max((now.epoch for now in news), default=0)
        for number in went:
            if self._by_number.pop(number).epoch != epoch:
                self.lost.add(number)
        is_past = is_first and not self._is_new
        for now in came:  # a partition that came while we read is read from its beginning
            self._by_number[now.number] = RemotePart(self, now if is_past else now._replace(end=now.floor))
            self._by_number[now.number].now = now
            self.lost.discard(now.number)
        if is_first and came and self._began is not None:
            self._began(self)
        if (came or went) and not is_first:
            for changed in self._listeners:
                changed()

    async def _go_on(self) -> bool:
        """Fetches the next page of each partition and hands the chunks to readers in order of time. Returns whether any
        partition was behind."""
        behind = [part for part in self.all if part.end < part.now.end]
        pages = [(part, *await part.page(part.end)) for part in behind]
        chunks = sorted(
            ((chunk.time_ms, number, chunk) for number, (_, found, _) in enumerate(pages) for chunk in found),
            key=lambda one: one[0],
        )
        left = [len(found) for _, found, _ in pages]
        for _, number, chunk in chunks:
            part, _, until = pages[number]
            left[number] -= 1
            part.came([chunk], chunk.base + chunk.count if left[number] else until)
        for part, _, until in pages:
            part.came([], until)
        return bool(behind)


def _epochs(now: PartNow) -> list[EpochStart]:
    """The epochs of a partition. Empty from a backend of an earlier version: one epoch says nothing of those before."""
    return [EpochStart(Epoch(epoch), Offset(start)) for epoch, start in now.epochs]


def _ignored(chunks: list[Chunk]) -> None:
    """Until a reader is set."""


def _nothing() -> None:
    """Until a listener is set."""
