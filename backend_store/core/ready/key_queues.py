"""Lines, the queues of messages behind locked keys: in memory, and for keys that are stuck for long, on disk.

A line's oldest part is in memory, its middle may be in rows of Table.PARKED, its end is in memory again. The rows are
an index only: at start they are deleted, and the lane is read again. Nothing here does I/O; the shell writes what
`take_spill` returns in its next commit, and reads the row that `wanted` names.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from backend_store.core.limits import (
    KEYED_CHUNKS_IN_MEMORY_MAX,
    KEYED_LOOK_AHEAD_RUNS_MAX,
    KEYED_RUNS_IN_MEMORY_MAX,
    KEYED_SPILL_ROWS_MAX,
    KEYED_STUCK_MS,
)
from backend_store.core.ready.key_index import Key, Spot

Part = tuple[Spot, int]
"""A chunk and the bits of its messages of one key."""


class ParkedRow(NamedTuple):
    """Messages of one key in the chunk at `base`.

    Rows are keyed (`number`, `position`): the key's number, valid until the next start, and the row's place in its
    line. Bases cannot be the key: scheduled messages join a line behind others of later chunks.
    """

    number: int
    position: int
    base: int
    bits: int


class Spill(NamedTuple):
    """Rows to write, and (number, position) of rows that were read back and must be deleted."""

    rows: list[ParkedRow]
    done: list[tuple[int, int]]


class Parked:
    """The parts of a spilled line before its end: `head` before the rows, and the rows from `first` on.

    `rows` counts rows that can be read, `coming` those on their way to the disk. A line without either is not parked.
    """

    __slots__ = ("coming", "first", "head", "number", "rows")

    def __init__(self, number: int, head: list[Part]):
        self.number = number
        self.head = head
        self.first = 0
        self.rows = 0
        self.coming = 0


class KeyQueues:
    """The lines of a lane by key. `by_key` has the end of each line, which is all of it unless the key is parked."""

    def __init__(self, last_number: int = 0) -> None:
        self.last_number = last_number
        """The highest number that a parked key has ever had."""
        self.by_key: dict[Key, list[Part]] = {}
        self.parked: dict[Key, Parked] = {}
        self.count = 0
        """Parts in memory."""
        self.chunks = 0
        """Chunks of those parts."""
        self.rows = 0
        """Parts on disk or on their way to it."""
        self._keys: dict[int, Key] = {}
        self._wanted: dict[Key, None] = {}
        self._spilling: list[tuple[Key, Spot]] = []
        self._done: list[tuple[int, int]] = []
        self._seen: dict[Key, Part] = {}
        self._seen_ms: int | None = None
        self._stuck: list[Key] = []

    @property
    def is_memory_full(self) -> bool:
        return self.count >= KEYED_RUNS_IN_MEMORY_MAX or self.chunks >= KEYED_CHUNKS_IN_MEMORY_MAX

    @property
    def is_full(self) -> bool:
        return self.count + self.rows >= KEYED_LOOK_AHEAD_RUNS_MAX

    # -------------------------------------------------------------------------------------------- push and pop

    def extend(self, spot: Spot, bits_of: Mapping[Key, int], keys: Collection[Key]) -> int:
        """Adds a chunk's messages to the ends of their keys' lines. Returns their bits."""
        by_key = self.by_key
        bits = 0
        for key in keys:
            own = bits_of[key]
            bits |= own
            line = by_key.get(key)
            if line is None:
                by_key[key] = [(spot, own)]
            else:
                line.append((spot, own))
        self._entered(spot, len(keys))
        return bits

    def prepend(self, key: Key, spot: Spot, bits: int) -> None:
        """Adds messages to the beginning of a line: to the first part, if that is of the same chunk."""
        parked = self.parked.get(key)
        line = parked.head if parked is not None else self.by_key.setdefault(key, [])
        has_first = bool(line) and line[0][0] is spot
        parts = spot.state.in_turns(line[0][1] | bits if has_first else bits)
        line[: int(has_first)] = [(spot, part) for part in parts]
        self._entered(spot, len(parts) - has_first)

    def insert_late(self, key: Key, spot: Spot, bits: int, bound: int) -> None:
        """Adds late messages to a line: behind the late ones at its beginning, those that came back, and those of
        chunks below offset `bound`; before all others.
        """
        parked = self.parked.get(key)
        line = parked.head if parked is not None else self.by_key.setdefault(key, [])
        place = _first_new(line, bound)
        if parked is not None and bound and place == len(line):
            line = self.by_key.setdefault(key, [])  # rows on disk may be below the bound, and must not wait for these
            place = _first_new(line, bound)
        if place < len(line):
            other, own = line[place]
            if again := own & (other.state.late | other.state.started):
                line[place : place + 1] = [(other, again), (other, own ^ again)]
                self._entered(other, 1)
                place += 1
        line.insert(place, (spot, bits))
        self._entered(spot, 1)

    def rejoin(self, key: Key, spot: Spot, bits: int) -> bool:
        """Adds messages to the first part behind a line's late ones, if that has earlier messages of the same chunk.
        Returns whether it has.
        """
        parked = self.parked.get(key)
        line = parked.head if parked is not None else self.by_key.get(key, [])
        place = next((number for number, (other, _) in enumerate(line) if not other.state.late), 0)
        if not place or line[place][0] is not spot:
            return False
        parts = spot.state.in_turns(line[place][1] | bits)
        if parts[0] & -parts[0] & bits:
            return False
        line[place : place + 1] = [(spot, part) for part in parts]
        self._entered(spot, len(parts) - 1)
        return True

    def pull(self, key: Key, bound: int) -> bool:
        """Moves the first part of a chunk below offset `bound` to the front of its line. Returns False if there is no
        such part in memory.
        """
        parked, end = self.parked.get(key), self.by_key.get(key, [])
        head = end if parked is None else parked.head
        for line in (head,) if head is end else (head, end):
            for number, (spot, _) in enumerate(line):
                if spot.state.base < bound:
                    head.insert(0, line.pop(number))
                    return True
        return False

    def pop(self, key: Key) -> Part | None:
        """Removes and returns the first part of an existing line. None: it is on disk, and `wanted` from now on."""
        parked = self.parked.get(key) if self.parked else None
        if parked is None:
            line = self.by_key[key]
            part = line.pop(0)
            if not line:
                del self.by_key[key]
        elif parked.head:
            part = parked.head.pop(0)
        else:
            self._wanted[key] = None
            return None
        self.left(part[0])
        return part

    def first_base(self, key: Key) -> int | None:
        """Returns the base of the chunk of a line's first part; None if that is on disk."""
        parked = self.parked.get(key) if self.parked else None
        line = self.by_key.get(key) if parked is None else parked.head
        return line[0][0].state.base if line else None

    def _entered(self, spot: Spot, count: int) -> None:
        if not spot.runs:
            self.chunks += 1
        spot.runs += count
        self.count += count

    def left(self, spot: Spot) -> None:
        """Notes that a part of the chunk is no longer in a line."""
        self.count -= 1
        spot.runs -= 1
        if not spot.runs:
            self.chunks -= 1

    # ------------------------------------------------------------------------------------------ rows read back

    @property
    def wanted(self) -> tuple[int, int] | None:
        """(number, position) of a row that must be read before its key can continue; None if there is none."""
        for key in self._wanted:
            parked = self.parked[key]
            if parked.rows:
                return parked.number, parked.first
        return None

    def unwant(self, key: Key) -> None:
        """Notes that the key has other messages that come first, so that its row is not needed yet."""
        self._wanted.pop(key, None)

    def unpark(self, number: int, spot: Spot | None, bits: int) -> Key:
        """Appends the wanted row of a key to the part before its rows. Returns the key."""
        key = self._keys[number]
        parked = self.parked[key]
        assert parked.rows, f"row {parked.first} of parked key {number} was never written"
        self._wanted.pop(key, None)
        self._done.append((number, parked.first))
        parked.first += 1
        parked.rows -= 1
        self.rows -= 1
        if spot is not None:
            parked.head.append((spot, bits))
            self._entered(spot, 1)
        if not parked.rows and not parked.coming:
            self._join(key, parked)
        return key

    def _join(self, key: Key, parked: Parked) -> None:
        """Joins the part before the rows and the part after them, since no row is left between."""
        del self.parked[key], self._keys[parked.number]
        line = parked.head + self.by_key.pop(key, [])
        if line:
            self.by_key[key] = line

    # --------------------------------------------------------------------------------------------------- spill

    def take_spill(self, now_ms: int, *, is_needed: bool) -> Spill | None:
        """Returns rows for the next commit, or None. Only stuck lines are spilled, because others are short-lived."""
        if self._spilling:
            return None
        done, self._done = self._done[:KEYED_SPILL_ROWS_MAX], self._done[KEYED_SPILL_ROWS_MAX:]
        rows: list[ParkedRow] = []
        if is_needed:
            self._look_for_stuck(now_ms)
            # The next message of each stuck key stays in memory, unless there is nothing else to spill.
            for keep in (1, 0):
                for key in self._stuck:
                    self._spill(key, keep, rows)
                if rows:
                    break
        return Spill(rows, done) if rows or done else None

    def _look_for_stuck(self, now_ms: int) -> None:
        if self._seen_ms is not None and now_ms - self._seen_ms < KEYED_STUCK_MS:
            return
        by_key = self.by_key
        self._stuck = [key for key, part in self._seen.items() if (line := by_key.get(key)) and line[0] is part]
        self._seen = {key: line[0] for key, line in by_key.items() if line}
        self._seen_ms = now_ms

    def _spill(self, key: Key, keep: int, rows: list[ParkedRow]) -> None:
        line = self.by_key.get(key)
        parked = self.parked.get(key)
        # Late messages stay in memory, so that further ones find their place behind them.
        start = 0 if parked is not None else max(keep, _first_new(line or (), 0))
        room = KEYED_SPILL_ROWS_MAX - len(rows)
        if line is None or not room or len(line) <= start:
            return
        if parked is None:
            self.last_number += 1
            parked = self.parked[key] = Parked(self.last_number, line[:start])
            self._keys[parked.number] = key
        position = parked.first + parked.rows
        for spot, bits in line[start : start + room]:
            rows.append(ParkedRow(parked.number, position, spot.state.base, bits))
            self._spilling.append((key, spot))
            position += 1
        parked.coming = position - parked.first - parked.rows
        self.rows += parked.coming
        self.by_key[key] = line[start + room :]

    def spilled(self) -> list[Spot]:
        """Removes rows from memory that are now on disk. Returns their chunks."""
        spilling, self._spilling = self._spilling, []
        for key, spot in spilling:
            parked = self.parked[key]
            parked.rows += 1
            parked.coming -= 1
            self.left(spot)
        return [spot for _, spot in spilling]


def _first_new(line: Sequence[Part], bound: int) -> int:
    """The number of parts at the beginning of a line that are late, came back, or are of chunks below `bound`."""
    for number, (spot, bits) in enumerate(line):
        state = spot.state
        if bits & ~(state.late | state.started) and state.base >= bound:
            return number
    return len(line)
