"""The partitions of a stream that lies at a backend, as readers here see them: the shape of `client.streams`.

The backend says how far each partition is. What readers here want of it is fetched and kept for a moment: the end as
it moves on, for all who stand there; what lies further back for whoever reads it, who begins anew when it is here. A
partition ends here where its last chunk is that was fetched, so nobody is told of an end before its messages are here.

A leader of mode `async` that is lost may take with it what was read here already. The next one's log is another epoch:
what lies here beyond the place where the two part is forgotten, and who had read it is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from backend_store.client.streams import Start, position_in
from backend_store.core.chunk import Chunk
from backend_store.core.cursor import encode_positions, where_they_part
from backend_store.core.records import EpochStart
from backend_store.core.slot_book import Barrier
from backend_store.model import Epoch, Offset, PushqError, Unavailable
from backend_store.node.limits import EPOCHS_MAX
from backend_store.remote.limits import (
    READ_BYTES_MAX,
    TAIL_BYTES_MAX,
    TAIL_IDLE_SECONDS,
    TAIL_RETRY_SECONDS,
    TAIL_WAIT_SECONDS_MAX,
)
from backend_store.remote.ranges import opened
from backend_store.service.ranges import Pieces, ReadRange
from backend_store.service.tailing import Started, StartReading
from backend_store.wire.store_frames import PartNow, Want

if TYPE_CHECKING:
    from backend_store.remote.queue import RemoteQueue
    from backend_store.remote.streams import RemoteStream

log = structlog.get_logger("pushq.remote")

_pieces = msgspec.msgpack.Decoder(Pieces).decode
started = msgspec.msgpack.Decoder(Started).decode
PAGE_MESSAGES_MAX = 5_000


class Shelf:
    """Chunks that were fetched, by the offsets from which each is the next one. The oldest leave first."""

    def __init__(self) -> None:
        self._next: dict[int, Chunk | int] = {}
        """Offset → the chunk that has it or follows it; or up to where there is none."""
        self._bytes = 0

    def put(self, start: int, chunks: list[Chunk], until: int) -> None:
        """All that lies from `start` up to `until`."""
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
        """The first chunk that has or follows an offset; True where none is below `end`, False if nobody knows."""
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
    """Has the shape of `client.streams.StreamPart`."""

    def __init__(self, parts: RemoteParts, now: PartNow):
        self._parts = parts
        self.number = now.number
        self.now = now
        self.epochs = _epochs(now)
        """The same list for as long as the log goes on in one epoch."""
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
        """The first stored chunk that has or follows `offset`. Raises `LookingUp`."""
        at = max(offset, self.floor)
        found = self._shelf.find(at, self._end)
        if found is False:
            stream = self._parts.stream
            what = f"messages of {stream.name!r} from {at} on"
            chunks = stream.known(what, f"read {self.number} {self.epoch} {at}", lambda: self.fetch(at))
            return chunks[0] if chunks else None
        return found if isinstance(found, Chunk) else None

    def has_none_from(self, offset: int) -> bool:
        """Whether it is known here that nothing is there from an offset on."""
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
        """`may_go_back`: to an older epoch, as where a backup was restored."""
        before = self.now
        if now.epoch < before.epoch and not may_go_back:
            return  # a late word of who leads no more
        self.now = now
        if now.epoch != before.epoch:
            self._goes_on_in_another()
        if now.floor > before.floor:
            self._end = max(self._end, now.floor)
            self._trimmed()

    def _goes_on_in_another(self) -> None:
        before, told = self.epochs, _epochs(self.now)
        # Where our list has the first epoch that we are told of, what we know of the time before is of the same log.
        older = next((index for index, start in enumerate(before) if told and start == told[0]), 0)
        self.epochs = [*before[:older], *told][-EPOCHS_MAX:]
        self._shelf = Shelf()  # also what lies beyond our end, where somebody read on
        parted = where_they_part(before, self.epochs, self._end)
        if parted is not None:
            log.warning("a stream goes on without its end", queue=self._parts.stream.name, partition=self.number)
            # What of it is ours is not known: those who read here begin anew, and nobody else waits for that.
            self._end = parted if parted > self.floor else self.now.end
        self._replaced()

    async def fetch(self, at: int) -> list[Chunk]:
        """The next chunks from an offset on. Raises `PushqError`."""
        return (await self.page(at))[0]

    async def page(self, at: int) -> tuple[list[Chunk], int]:
        """The same, and up to where that is all."""
        stream, epoch = self._parts.stream, self.epoch
        asked = ReadRange(stream.place_there, self.number, at, None, PAGE_MESSAGES_MAX, READ_BYTES_MAX)
        found = _pieces(await stream.ask(asked, may_repeat=True))
        await stream.learnt([piece.chunk for piece in found.pieces])
        chunks = [opened(stream, piece) for piece in found.pieces]
        if not self.epoch == epoch == found.at.epoch:  # its news are on their way here
            raise Unavailable(f"stream {stream.name!r} has another leader", retry_after_ms=500)
        self._shelf.put(at, chunks, found.next)
        return chunks, found.next

    def came(self, chunks: list[Chunk], until: int) -> None:
        """It goes on to `until`, with these chunks."""
        self._end = max(self._end, until)
        if chunks:
            self.appended(chunks)


class RemoteParts:
    """Has the shape of `client.streams.StreamParts`. It follows the stream for as long as somebody here reads it."""

    def __init__(
        self,
        stream: RemoteStream,
        whole: RemoteQueue | None = None,
        *,
        began: Callable[[RemoteParts], None] | None = None,
        is_new: bool = False,
    ):
        """`whole`: who has the readers, where it is not the stream itself. `began` is called once partitions are known,
        before anything of them is told. `is_new`: readers here have all that came before it, and get all of it."""
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
        """Nothing was heard of it yet."""
        self._may_go_back = False
        """Among the news is the first word of a new line: whatever epoch it names is the present one."""
        self._task = stream.background(self._follow())
        self.follow()

    @property
    def is_ready(self) -> bool:
        return bool(self._by_number)

    def follow(self) -> None:
        """Says to the backend that somebody reads here."""
        self._is_line_new = True
        self._want(1)

    def _want(self, granted: int) -> None:
        self.stream.want(Want(self.stream.place_there, 0, granted, 1))

    async def ready(self) -> None:
        """Raises `Unavailable`."""
        await self._until(lambda: self.is_ready)

    async def _until(self, is_so: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(TAIL_WAIT_SECONDS_MAX):
                while not is_so():
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError:
            raise Unavailable(f"stream {self.stream.name!r}: its backend is not there", retry_after_ms=500) from None

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
        """Raises `InvalidRequest`, and `LookingUp`."""
        what = f"a place in {self.stream.name!r}"
        return self.stream.known(what, f"start {wanted!r}", lambda: self.begin(wanted), is_used_up=True)

    async def begin(self, wanted: Any) -> Start:
        """See `start`: the same, asked now. All that was stored by then is known here. Raises `PushqError`."""
        asked = StartReading(self.stream.place_there, wanted)
        start, ends = started(await self.stream.ask(asked, may_repeat=True))
        # Who begins at the end must not be given what was there before; who reads must be given what was confirmed.
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
        for now in came:  # one that came while we read is read from its beginning
            self._by_number[now.number] = RemotePart(self, now if is_past else now._replace(end=now.floor))
            self._by_number[now.number].now = now
            self.lost.discard(now.number)
        if is_first and came and self._began is not None:
            self._began(self)
        if (came or went) and not is_first:
            for changed in self._listeners:
                changed()

    async def _go_on(self) -> bool:
        """Fetches the next page of each partition and tells of it in the order of time. Whether something was there."""
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
    """An earlier backend tells of none; one epoch says nothing about what was before."""
    return [EpochStart(Epoch(epoch), Offset(start)) for epoch, start in now.epochs]


def _ignored(chunks: list[Chunk]) -> None:
    """Nobody reads."""


def _nothing() -> None:
    """Nobody listens yet."""
