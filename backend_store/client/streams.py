"""A stream as its readers see it: partitions that are read side by side, and a reader's offset in each of them.

A reader keeps its own position: one offset per partition. `cursor` encodes all of them as one text.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from backend_store.core.limits import EPOCHS_TOLD_MAX
from backend_store.core.log.chunk import Chunk
from backend_store.core.log.cursor import (
    PLACE_EPOCHS,
    StreamStart,
    begin_anew,
    decode_cursor,
    encode_positions,
    epoch_at,
    has_dropped_since,
    of_place,
    resolve,
    resume,
)
from backend_store.core.log.records import EpochStart, PartitionState
from backend_store.core.partitions.slot_history import Barrier
from backend_store.model import Epoch, FieldError, InvalidRequest, Offset, Position
from backend_store.node.log.apply import read_state
from backend_store.node.log.seek import offset_at_time, read_at
from backend_store.node.partition import Partition
from backend_store.node.partitions import Partitions

Outcome = Literal["complete", "gap", "reset"]


class Gap(NamedTuple):
    """Offsets, inclusive, that a reader will never get. `partition` None: the stream has only one."""

    first: int
    last: int
    partition: int | None = None

    def and_also(self, other: Gap) -> Gap:
        """Joins two gaps of one partition: from the lower first to the higher last."""
        return Gap(min(self.first, other.first), max(self.last, other.last), self.partition)


class Start(NamedTuple):
    """Where a reader starts: the offset in each partition, and what it misses."""

    places: dict[int, int]
    outcome: Outcome
    gaps: list[Gap]
    cursor: str
    epochs: Mapping[int, Sequence[EpochStart]] = {}
    """See `StreamPart.epochs`; empty from an earlier backend."""


class StreamPart:
    """One partition of a stream, as readers see it."""

    def __init__(self, partition: Partition):
        self.partition = partition
        self.number = partition.index

    @property
    def epoch(self) -> Epoch:
        """The epoch of its log: an offset from another epoch may mean other messages."""
        return self.partition.state.epoch

    @property
    def epochs(self) -> Sequence[EpochStart]:
        """Where the epochs of its log begin, as far back as known; the last one is `epoch`."""
        return self.partition.state.epochs

    @property
    def floor(self) -> Offset:
        """Everything below is gone."""
        return Offset(self.partition.state.floor)

    @property
    def end(self) -> Offset:
        return self.partition.state.high_watermark

    @property
    def is_empty(self) -> bool:
        return not self.partition.state.live

    @property
    def barriers(self) -> Sequence[Barrier]:
        """Offsets that a reader passes only after it reached certain offsets in other partitions: see `standing`."""
        return self.partition.slotting.barriers if self.partition.slotting is not None else ()

    def read(self, offset: int) -> Chunk | None:
        """The first stored chunk that contains or follows `offset`."""
        return read_at(self.partition, max(offset, self.floor))

    def lost_at(self, places: Mapping[int, int]) -> tuple[int, int] | None:
        """The first and the last offset that a reader will never get who goes on here; `places`: where it stands."""
        place = places.get(self.number, self.floor)
        return (place, self.floor - 1) if place < self.floor else None

    def start(self, wanted: Any) -> StreamStart:
        """Where a reader that asks for `wanted` starts; for a cursor, `wanted` is its position here, or "earliest"."""
        partition = self.partition
        if isinstance(wanted, Position):
            return resume(partition.state, wanted)
        uid, number = partition.title.uid, partition.index
        return resolve(
            partition.state, wanted, lambda time_ms: offset_at_time(partition, time_ms), uid=uid, partition=number
        )

    def start_anew(self) -> StreamStart:
        """Where a reader whose cursor is of another log starts."""
        return begin_anew(self.partition.state)

    def on_appended(self, appended: Callable[[list[Chunk]], None]) -> None:
        """`appended` gets the chunks of each commit, in order."""
        self.partition.on_appended = appended

    def on_trimmed(self, trimmed: Callable[[], None]) -> None:
        """`trimmed` runs after retention dropped the oldest messages, or a purge all."""
        self.partition.on_purged = trimmed

    def on_replaced(self, replaced: Callable[[], None]) -> None:
        """`replaced` runs when the log continues in another epoch; an embedded log never does while it is open."""


class StreamParts:
    """All partitions of a stream that may hold messages."""

    lost: Collection[int] = ()
    """Numbers of partitions that are gone although nothing dropped them: lost with a leader. Always empty here."""

    def __init__(self, partitions: Partitions):
        self._partitions = partitions
        self._made: dict[int, StreamPart] = {}

    @property
    def all(self) -> list[StreamPart]:
        """In the order of their numbers."""
        found = {}
        for partition in self._partitions.all:
            made = self._made.get(partition.index)
            is_known = made is not None and made.partition is partition
            found[partition.index] = made if made is not None and is_known else StreamPart(partition)
        self._made = found
        return list(found.values())

    @property
    def are_several(self) -> bool:
        return len(self._partitions.all) > 1

    @property
    def uid(self) -> int:
        """The queue's uid, which its cursors name."""
        return self._partitions.definition.uid

    def on_changed(self, changed: Callable[[], None]) -> None:
        """Has `changed` called when a partition comes or goes."""
        self._partitions.on_changed(changed)

    # ------------------------------------------------------------------------------------------------------ places

    def cursor(self, places: Mapping[int, int]) -> str:
        """The cursor with which a reader returns to `places` (partition → offset)."""
        return encode_positions(self.positions(places), uid=self.uid)

    def positions(self, places: Mapping[int, int]) -> dict[int, Position]:
        """Positions in those partitions that `places` names."""
        return {part.number: position_in(part, places[part.number]) for part in self.all if part.number in places}

    def start(self, wanted: Any) -> Start:
        """Where a reader starts. `wanted`: "earliest", "latest", {"seq": n}, {"time": ms} or {"cursor": text}.

        Raises `InvalidRequest`.
        """
        refusal = why_no_place(self._partitions, wanted, "/from")
        if refusal is not None:
            raise refusal
        if isinstance(wanted, dict) and "cursor" in wanted:
            stand = decode_cursor(wanted["cursor"])
            if not stand.is_of(self.uid):
                return self._started({part.number: part.start_anew() for part in self.all}, [])
            return self._resumed(stand.positions)
        gaps = self._dropped_since(wanted["time"]) if isinstance(wanted, dict) and "time" in wanted else []
        return self._started({part.number: part.start(wanted) for part in self.all}, gaps)

    def _resumed(self, positions: dict[int, Position]) -> Start:
        """A partition that the cursor does not name is newer than the cursor: it is read from its beginning."""
        starts = {part.number: part.start(positions.get(part.number, "earliest")) for part in self.all}
        return self._started(starts, self._gone(positions), is_reset=self._are_lost(positions))

    def _are_lost(self, positions: Mapping[int, Position]) -> bool:
        """Whether the cursor read from partitions that this queue never had, so that it is of another log."""
        known = self._partitions.map.replicas if self._partitions.map is not None else {}
        return any(
            position.offset > 0 and number not in known and self._partitions.get(number) is None
            for number, position in positions.items()
        )

    def _started(self, starts: dict[int, StreamStart], gaps: list[Gap], *, is_reset: bool = False) -> Start:
        several = self.are_several
        for number, start in starts.items():
            if start.missed is not None:
                gaps.append(Gap(*start.missed, number if several else None))
        is_reset = is_reset or any(start.outcome == "reset" for start in starts.values())
        places = {number: int(start.offset) for number, start in starts.items()}
        epochs = {part.number: part.epochs[-EPOCHS_TOLD_MAX:] for part in self.all if part.number in places}
        outcome: Outcome = "reset" if is_reset else "gap" if gaps else "complete"
        return Start(places, outcome, gaps, self.cursor(places), epochs)

    def _gone(self, positions: Mapping[int, Position]) -> list[Gap]:
        """What a reader had not read of partitions that have retired since: they were trimmed to their end."""
        gone = {number: state for number, state in self._retired() if number in positions}
        return [
            Gap(int(positions[number].offset), state.floor - 1, number)
            for number, state in gone.items()
            if positions[number].offset < state.floor
        ]

    def _dropped_since(self, time_ms: int) -> list[Gap]:
        """The same for a reader that starts at a time."""
        return [
            Gap(0, state.floor - 1, number) for number, state in self._retired() if has_dropped_since(state, time_ms)
        ]

    def _retired(self) -> Iterator[tuple[int, PartitionState]]:
        known = self._partitions.map
        for number, replica in known.replicas.items() if known is not None else ():
            if self._partitions.get(number) is None:
                state = read_state(self._partitions.first.node.engine, replica)
                if state is not None:
                    yield number, state


def position_in(part: Any, place: int) -> Position:
    """A reader's position in `part` (shaped like `StreamPart`), with the oldest epoch that has the offset."""
    epochs = part.epochs
    if len(epochs) < 2:
        return Position(part.epoch, Offset(place))
    if epochs[-1].epoch >= PLACE_EPOCHS:  # it has moved
        epochs = of_place(epochs, place) or epochs
    return Position(Epoch(epoch_at(epochs, place) % PLACE_EPOCHS), Offset(place))


def why_no_place(partitions: Partitions, wanted: Any, pointer: str) -> InvalidRequest | None:
    """Why a reader cannot start there; None if it can. A seq is an offset in one partition, and ambiguous in
    several."""
    if not isinstance(wanted, dict) or "seq" not in wanted or len(partitions.all) == 1:
        return None
    numbers = ", ".join(str(partition.index) for partition in partitions.all)
    detail = (
        f"stream {partitions.label!r} has partitions {numbers}, and a seq is a position in only one of them: start "
        "at earliest, latest or a time"
    )
    return InvalidRequest(detail, errors=(FieldError(f"{pointer}/seq", detail),))
