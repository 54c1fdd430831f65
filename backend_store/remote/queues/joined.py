"""Joins the places (clusters) of a stream that has moved into one stream, as its readers see it.

A partition continues in the next place where it ended in the last one. A reader gets a place's messages after all those
of earlier places, in all partitions: see `JoinedPart.barriers`. Readers do not notice a move: the old place takes no
more messages, and the new place is tailed from its beginning once all of the old one has arrived here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog

from backend_store.client.streams import Gap, Outcome, Start, position_in
from backend_store.core.log.chunk import Chunk
from backend_store.core.log.cursor import Stand, decode_cursor, encode_positions, in_place
from backend_store.core.log.records import EpochStart
from backend_store.core.partitions.slot_history import Barrier
from backend_store.metadata.sharing import FLOOR_BITS
from backend_store.model import ClusterAway, Epoch, Offset, Position, PushqError, Unavailable, Whereabouts
from backend_store.remote.limits import TAIL_RETRY_SECONDS, TAIL_WAIT_SECONDS_MAX
from backend_store.remote.queues.tails import RemotePart, RemoteParts

if TYPE_CHECKING:
    from backend_store.remote.queues.placed_streams import PlacedStream

log = structlog.get_logger("pushq.remote")


class _Leg(NamedTuple):
    """One place's part of a partition. The place assigns offsets from `floor` on."""

    floor: int
    part: RemotePart
    came_at: int
    """The partition's end in the place before; just below the floor if the partition had nothing there."""


class Site(NamedTuple):
    """A place of a stream, and the first offset that it assigns: another one each time the stream returns there."""

    floor: int
    place: Whereabouts


class _Open(NamedTuple):
    """A place that is open to readers here."""

    site: Site
    parts: RemoteParts

    @property
    def floor(self) -> int:
        return self.site.floor


class JoinedPart:
    """One partition over all open places; has the shape of `client.streams.StreamPart`. `JoinedParts` owns it."""

    def __init__(self, parts: JoinedParts, number: int):
        self.number = number
        self._parts = parts
        self.legs: list[_Leg] = []
        self._known: list[Sequence[EpochStart]] = []
        self._epochs: list[EpochStart] = []
        self._appended: Callable[[list[Chunk]], None] = _ignored
        self._trimmed: Callable[[], None] = _nothing
        self._replaced: Callable[[], None] = _nothing

    def go_on(self, leg: _Leg) -> None:
        self.legs.append(leg)
        leg.part.on_appended(partial(self._came, leg))
        leg.part.on_trimmed(lambda: self._trimmed())
        leg.part.on_replaced(lambda: self._replaced())

    def _came(self, leg: _Leg, chunks: list[Chunk]) -> None:
        if leg is self.legs[-1]:  # an earlier place takes no new messages
            self._appended(chunks)

    # --------------------------------------------------------------------------------------------- as readers see it

    @property
    def epoch(self) -> Epoch:
        return self.legs[-1].part.epoch

    @property
    def epochs(self) -> Sequence[EpochStart]:
        """Epoch starts of all places; see `cursor.in_place`. The same list object until a place's list changes."""
        known = [leg.part.epochs for leg in self.legs]
        if len(known) != len(self._known) or any(one is not two for one, two in zip(known, self._known, strict=True)):
            self._known = list(known)
            self._epochs = [start for leg in self.legs for start in in_place(leg.part.epochs, leg.floor)]
        return self._epochs

    @property
    def floor(self) -> Offset:
        first = self.legs[0]
        # A reader that has not begun in a later place stands before it, so that it waits for the earlier places in the
        # other partitions.
        return Offset(first.floor - 1) if self._parts.is_later(first.floor) else first.part.floor

    @property
    def end(self) -> Offset:
        return self.legs[-1].part.end

    @property
    def is_empty(self) -> bool:
        return all(leg.part.is_empty for leg in self.legs)

    @property
    def barriers(self) -> list[Barrier]:
        """The places' own barriers, and one before each later place, which a reader passes once it has reached the ends
        of the earlier places."""
        found = []
        for leg in self.legs:
            before = leg.floor - 1
            ends = self._parts.ends_before(leg.floor)
            found += [Barrier(before, number, end) for number, end in ends.items() if number != self.number]
            found += leg.part.barriers
        return found

    def read(self, offset: int) -> Chunk | None:
        """Returns the first stored chunk that contains or follows `offset`, if any. Raises `LookingUp`."""
        for leg in self.legs[:-1]:
            if offset < leg.part.end and (chunk := leg.part.read(max(offset, leg.floor))) is not None:
                return chunk
        leg = self.legs[-1]
        return leg.part.read(max(offset, leg.floor))

    def lost_at(self, places: Mapping[int, int]) -> tuple[int, int] | None:
        """See `client.streams.StreamPart.lost_at`. A loss in a later place is reported when a reader comes to that."""
        place = places.get(self.number, int(self.floor))
        leg = next((leg for leg in self.legs[:-1] if not leg.part.is_done_from(place)), self.legs[-1])
        low = int(leg.part.floor)
        if place >= low:
            return None
        if place >= leg.floor or (leg is self.legs[0] and place < leg.came_at):
            return place, low - 1
        if low == leg.floor or not self._parts.is_through(leg.floor, places):
            return None
        return leg.floor, low - 1

    def on_appended(self, appended: Callable[[list[Chunk]], None]) -> None:
        self._appended = appended

    def on_trimmed(self, trimmed: Callable[[], None]) -> None:
        self._trimmed = trimmed

    def on_replaced(self, replaced: Callable[[], None]) -> None:
        self._replaced = replaced


class JoinedParts:
    """All partitions of a moved stream; has the shape of `client.streams.StreamParts`. Tails the stream while it has
    readers here."""

    def __init__(self, stream: PlacedStream):
        self.stream = stream
        self._loop = asyncio.get_running_loop()
        self._sites: list[_Open] = []
        """The places that are open to readers, oldest first. Another list object once one of them is forgotten."""
        self._by_number: dict[int, JoinedPart] = {}
        self._ends: dict[int, dict[int, int]] = {}
        """By the floor of a later place: each partition's end in the places before it, which take no more messages."""
        self._listeners: list[Callable[[], None]] = []
        self._is_closed = False
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._waits: PushqError | None = None
        """Why the next place is not open."""
        self.is_ready = False
        self.changed()

    @property
    def lost(self) -> set[int]:
        return {number for site in self._sites[-1:] for number in site.parts.lost if number not in self._by_number}

    def used(self) -> None:
        """Notes that a reader reads, or is about to."""
        for site in self._sites:
            site.parts.used_at = self._loop.time()

    async def ready(self) -> None:
        """Returns when all places are open. Raises `Unavailable`."""
        try:
            async with asyncio.timeout(TAIL_WAIT_SECONDS_MAX):
                while not (self.is_ready and self._is_whole):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            detail = f"stream {self.stream.name!r}: not all of its clusters are reachable"
            why = f": {self._waits.detail}" if self._waits is not None else ""
            raise Unavailable(detail + why, retry_after_ms=500) from None

    def close(self) -> None:
        self._is_closed = True
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        for site in self._sites:
            site.parts.stream.let_go(site.parts)

    # ------------------------------------------------------------------------------------------------- its places

    @property
    def _is_whole(self) -> bool:
        return [one.site for one in self._sites] == self.stream.sites

    def changed(self) -> None:
        """Closes forgotten places and begins to open new ones, after a change of the stream's definition."""
        there = self.stream.sites
        gone = [one for one in self._sites if one.site not in there]
        for site in gone:
            site.parts.stream.let_go(site.parts)
        if gone:
            self._sites = [one for one in self._sites if one.site in there]
            self._align()
        if not self._is_whole and (self._task is None or self._task.done()):
            self._task = self.stream.background(self._open())
        self._changed.set()

    async def _open(self) -> None:
        """Opens one place after the other, each when all messages of the place before have arrived. Retries errors."""
        while not self._is_closed and not self._is_whole:
            try:
                open_now = [one.site for one in self._sites]
                await self._open_at(next(site for site in self.stream.sites if site not in open_now))
                self._waits = None
            except PushqError as error:
                self._waits = error
                log.info("a stream is read on when its next place is there", queue=self.stream.name, error=error.detail)
                await asyncio.sleep(TAIL_RETRY_SECONDS)
        self.is_ready = True
        self._changed.set()

    async def _open_at(self, site: Site) -> None:
        piece = self.stream.stream_at(site.place)
        if isinstance(piece, ClusterAway):
            raise piece
        if self._sites:
            await self._read_to_its_end(self._sites[-1].parts)

        def began(parts: RemoteParts) -> None:
            self._sites.append(_Open(site, parts))
            parts.on_changed(self._align)
            self._align()

        parts = piece.follow(began, self.stream.unread, is_new=self.is_ready)
        try:
            await parts.ready()
        except PushqError:
            if any(one.parts is parts for one in self._sites):
                return  # the place is open, but much of it is still to be fetched
            piece.let_go(parts)
            raise
        except asyncio.CancelledError:
            piece.let_go(parts)
            raise

    async def _read_to_its_end(self, parts: RemoteParts) -> None:
        """Returns when all of a place that takes no more messages has arrived here. Raises `PushqError`."""
        ends = (await parts.begin("latest")).places
        if any(part.end < ends.get(part.number, 0) for part in parts.all):
            raise Unavailable(f"stream {self.stream.name!r} has another leader where it was", retry_after_ms=500)

    def _align(self) -> None:
        """Rebuilds the partitions after places, or partitions of a place, came or went."""
        self._ends = self._ends_of_sites()
        before = {number: [leg.part for leg in part.legs] for number, part in self._by_number.items()}
        for number in sorted({part.number for site in self._sites for part in site.parts.all} | before.keys()):
            legs = self._legs_of(number)
            known = self._by_number.get(number)
            if not legs:
                self._by_number.pop(number, None)
                continue
            if known is None:
                known = self._by_number[number] = JoinedPart(self, number)
            if [leg.part for leg in legs] != before.get(number, []):
                known.legs = []
                for leg in legs:
                    known.go_on(leg)
        if self.is_ready:
            for changed in self._listeners:
                changed()

    def _legs_of(self, number: int) -> list[_Leg]:
        found = []
        for site in self._sites:
            part = next((part for part in site.parts.all if part.number == number), None)
            if part is not None:
                came_at = self.ends_before(site.floor).get(number, site.floor - 1 if site.floor else 0)
                found.append(_Leg(site.floor, part, came_at))
        return found

    def _ends_of_sites(self) -> dict[int, dict[int, int]]:
        """See `_ends`. Keeps the ends of forgotten places: a reader that had reached those has missed nothing. A
        partition that had nothing in a place has no end there."""
        found: dict[int, dict[int, int]] = {}
        ends: dict[int, int] = {}
        for site in self._sites:
            ends = found[site.floor] = {**self._ends.get(site.floor, {}), **ends}
            had = [part for part in site.parts.all if part.number not in ends or not part.is_done_from(site.floor)]
            ends = {**ends, **{part.number: int(part.end) for part in had}}
        return found

    def ends_before(self, floor: int) -> Mapping[int, int]:
        """By partition, the end of the places before the one that begins at `floor`."""
        return self._ends.get(floor, {})

    def is_later(self, floor: int) -> bool:
        return bool(self._ends.get(floor))

    def is_through(self, floor: int, places: Mapping[int, int]) -> bool:
        """Whether a reader at `places` has had all messages of the places before `floor`, as far as is known here."""
        return all(
            number not in places or leg.part.has_none_from(places[number])
            for number, part in self._by_number.items()
            for leg in part.legs
            if leg.floor < floor
        )

    # -------------------------------------------------------------------------------------------- as readers see them

    @property
    def all(self) -> list[JoinedPart]:
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
        """Where a reader begins: see `client.streams.StreamParts.start`. Raises `InvalidRequest`, and `LookingUp`."""
        what = f"a place in {self.stream.name!r}"
        return self.stream.known(what, f"start {wanted!r}", lambda: self._start(wanted), is_used_up=True)

    async def _start(self, wanted: Any) -> Start:
        while True:
            await self.ready()
            sites = self._sites
            try:
                return await self._start_now(wanted)
            except PushqError:
                if sites is self._sites:
                    raise
            # A place was forgotten meanwhile: what was asked by the places of before counts no more.

    async def _start_now(self, wanted: Any) -> Start:
        """As `_start`. Raises `Unavailable` if a place is forgotten meanwhile."""
        if wanted == "earliest":
            begun = await self._begun({0: wanted})
        elif wanted is None or wanted == "latest":
            begun = await self._begun({len(self._sites) - 1: wanted})
        elif "time" in wanted:
            return await self._from_time(wanted)
        elif "seq" in wanted:
            await self._hear_of([wanted["seq"]])
            begun = await self._begun({place_of(wanted["seq"], self._floors): wanted})
        else:
            stand = decode_cursor(wanted["cursor"])
            await self._hear_of([int(position.offset) for position in stand.positions.values()])
            begun = await self._begun(self._shares(stand) if stand.is_of(self.stream.uid) else {0: wanted})
            return self._started(begun, self._resumed(stand, begun))
        return self._started(begun, self._places_from(begun))

    async def _begun(self, wanted: Mapping[int, Any]) -> dict[int, Start]:
        """Asks each place (by index) for a start, one after the other; returns the starts by place. Raises
        `Unavailable` if a place is forgotten meanwhile."""
        sites = self._sites
        begun = {at: await sites[at].parts.begin(asked) for at, asked in wanted.items()}
        if sites is not self._sites:
            raise Unavailable(f"stream {self.stream.name!r} has just been forgotten in a place", retry_after_ms=500)
        return begun

    async def _hear_of(self, offsets: Sequence[int]) -> None:
        """Waits for news if an offset is of a place not yet known here, which another gateway may have heard of first.
        Raises `PushqError`."""
        end = max(self._sites[-1].floor, *(int(part.end) for part in self.all))
        if any(offset >> FLOOR_BITS > end >> FLOOR_BITS for offset in offsets):
            await self.stream.hear()
            await self.ready()

    async def _from_time(self, wanted: Any) -> Start:
        """Starts in the first place that has a message of that time or later, in any partition."""
        begun: dict[int, Start] = {}
        for at, site in enumerate(self._sites):
            begun.update(await self._begun({at: wanted}))
            ends = {part.number: int(part.end) for part in site.parts.all}
            if any(place < ends.get(number, 0) for number, place in begun[at].places.items()):
                break
        at = max(begun)
        return self._started(begun, self._places_from({at: begun[at]}))

    def _places_from(self, begun: Mapping[int, Start]) -> dict[int, int]:
        """Offsets by partition for a reader that begins in one place: at the ends of the places before it, and at the
        floor of partitions that only later places have."""
        [(at, start)] = begun.items()
        floor = self._sites[at].floor
        found = {**self.ends_before(floor), **start.places}
        return {part.number: found.get(part.number, int(part.floor)) for part in self.all}

    @property
    def _floors(self) -> list[int]:
        return [site.floor for site in self._sites]

    def _shares(self, stand: Stand) -> dict[int, Any]:
        found = shares_of(stand, self._floors)
        return {at: {"cursor": encode_positions(own, uid=self.stream.uid)} for at, own in found.items()} or {
            0: "earliest"
        }

    def _resumed(self, stand: Stand, begun: Mapping[int, Start]) -> dict[int, int]:
        first = min(begun)
        found = dict(begun[first].places)
        for number, position in stand.positions.items() if stand.is_of(self.stream.uid) else ():
            at = place_of(position.offset, self._floors)
            if position.offset + 1 >= self._floors[at] and number in begun[at].places:
                found[number] = begun[at].places[number]
            else:  # a position in a forgotten place, or in a partition that its place no longer has
                found[number] = int(position.offset)
        places = {**self.ends_before(self._sites[first].floor), **found}
        return {part.number: places.get(part.number, int(part.floor)) for part in self.all}

    def _started(self, begun: Mapping[int, Start], places: Mapping[int, int]) -> Start:
        gaps = [gap for at, start in begun.items() for gap in self._gaps_of(at, start)]
        stands = dict(places)
        for part in self.all:
            if (lost := part.lost_at(stands)) is not None:
                gaps.append(Gap(*lost, part.number if self.are_several else None))
                stands[part.number] = lost[1] + 1
        is_reset = any(start.outcome == "reset" for start in begun.values())
        outcome: Outcome = "reset" if is_reset else "gap" if gaps else "complete"
        epochs = {part.number: part.epochs for part in self.all}
        return Start(stands, outcome, gaps, self.cursor(stands), epochs)

    def _gaps_of(self, at: int, start: Start) -> list[Gap]:
        """The gaps of a place's start, cut off below its floor: a later place reports offsets of the earlier places as
        lost, which are not."""
        site = self._sites[at]
        low = site.floor if self.is_later(site.floor) else 0
        gaps = [gap._replace(first=max(gap.first, low)) for gap in start.gaps if gap.last >= low]
        if not self.are_several:
            return gaps
        first = site.parts.all[0].number
        return [gap._replace(partition=first if gap.partition is None else gap.partition) for gap in gaps]


def place_of(offset: int, floors: Sequence[int]) -> int:
    """Index of the place that has an offset; the offset just below a floor counts as the place that begins there."""
    return max((at for at, floor in enumerate(floors) if floor <= offset + 1), default=0)


def shares_of(stand: Stand, floors: Sequence[int]) -> dict[int, dict[int, Position]]:
    """Splits a cursor's positions by their places, oldest first. Positions below all floors are left out."""
    shares: dict[int, dict[int, Position]] = {}
    for number, position in stand.positions.items():
        at = place_of(position.offset, floors)
        if position.offset + 1 >= floors[at]:
            place = Offset(max(position.offset, floors[at]))
            shares.setdefault(at, {})[number] = Position(position.epoch, place)
    return dict(sorted(shares.items()))


def _ignored(chunks: list[Chunk]) -> None:
    """Does nothing: the part has no reader."""


def _nothing() -> None:
    """Does nothing: the part has no listener yet."""
