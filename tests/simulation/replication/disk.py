"""What a simulated node has stored: partitions with log and state, as of the last transaction that landed."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator

import msgspec

from backend_store.core.replication.entries import Entry
from backend_store.core.replication.log import StoredLog
from backend_store.core.replication.messages import Row, SnapshotBase
from backend_store.core.replication.stranded import where

Op = Callable[["Image"], None]
Message = tuple[int, int]
"""Producer and number."""


class Image:
    """One partition. Memory and disk have one each; the disk's takes the same operations, a commit later."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._offsets: list[int] = []
        self.stored = StoredLog()
        self.applied = 0
        self.rows: dict[bytes, bytes] = {}
        self.hash = 0
        self.unacked: dict[Message, None] = {}
        self.staged: dict[bytes, bytes] = {}
        self.quarantine: list[Entry] = []
        self.in_doubt: set[tuple[int, int]] = set()
        """Of it, by (offset, epoch): what the log that won may have."""

    def copy(self) -> Image:
        made = Image()
        made.entries, made._offsets = self.entries[:], self._offsets[:]
        made.stored, made.applied, made.hash = self.stored, self.applied, self.hash
        made.rows, made.unacked = self.rows.copy(), self.unacked.copy()
        made.quarantine, made.in_doubt = self.quarantine[:], self.in_doubt.copy()
        return made

    # ----------------------------------------------------------------------------------------------------- reading

    @property
    def end(self) -> int:
        return self.entries[-1].end if self.entries else self.stored.end

    @property
    def start(self) -> int:
        return self.entries[0].offset if self.entries else self.end

    def from_offset(self, offset: int) -> Iterator[Entry]:
        for index in range(bisect.bisect_left(self._offsets, offset), len(self.entries)):
            yield self.entries[index]

    def before(self, end: int) -> Entry | None:
        """The entry that ends there."""
        index = bisect.bisect_left(self._offsets, end) - 1
        return self.entries[index] if index >= 0 and self.entries[index].end == end else None

    def tail(self) -> list[Entry]:
        return list(self.from_offset(self.stored.base.end))

    # ---------------------------------------------------------------------------------------------------- changing

    def append(self, entries: tuple[Entry, ...]) -> None:
        if self.quarantine:
            came = {(entry.offset, entry.epoch) for entry in entries}
            self.quarantine = [one for one in self.quarantine if (one.offset, one.epoch) not in came]
        self.entries += entries
        self._offsets += [entry.offset for entry in entries]

    def truncate(self, end: int, *, keeps: bool, base: SnapshotBase | None = None) -> None:
        """`base`: see `quarantine.keep` of the shards."""
        index = bisect.bisect_left(self._offsets, end)
        for entry in self.entries[index:] if keeps else ():
            fate = "lacked" if base is None else where(entry.epoch, entry.offset, base.epochs, base.end)
            if fate != "there":
                self.quarantine.append(entry)
            if fate == "unknown":
                self.in_doubt.add((entry.offset, entry.epoch))
        del self.entries[index:], self._offsets[index:]

    def trim(self, start: int) -> None:
        index = bisect.bisect_left(self._offsets, start)
        del self.entries[:index], self._offsets[:index]

    def to_apply(self, end: int) -> list[tuple[bytes, bytes]]:
        """The rows of the entries up to `end` that are not applied."""
        rows: list[tuple[bytes, bytes]] = []
        for entry in self.from_offset(self.applied):
            if entry.offset >= end:
                break
            rows += effects_of(entry)
        return rows

    def apply(self, rows: list[tuple[bytes, bytes]], end: int) -> None:
        for key, value in rows:
            self.put(key, value)
        self.applied = max(self.applied, end)

    def put(self, key: bytes, value: bytes) -> None:
        before = self.rows.get(key)
        if before is not None:
            self.hash ^= hash((key, before))
        self.rows[key] = value
        self.hash ^= hash((key, value))
        message = msgspec.msgpack.decode(key, type=Message)
        if value.endswith(b"+"):
            self.unacked.pop(message, None)
        else:
            self.unacked[message] = None

    def stage(self, rows: tuple[Row, ...], *, is_first: bool) -> None:
        if is_first:
            self.staged.clear()
        self.staged |= rows

    def switch(self, base: SnapshotBase, end: int, *, keeps: bool, has_parted: bool) -> None:
        self.truncate(end, keeps=keeps, base=None if has_parted else base)
        self.quarantine = [
            one for one in self.quarantine if where(one.epoch, one.offset, base.epochs, base.end) != "there"
        ]
        self.trim(base.end)
        rows = dict(self.staged)
        self.rows, self.unacked, self.hash = {}, {}, 0
        for key, value in rows.items():
            self.put(key, value)
        self.staged.clear()
        self.applied = base.end

    def store(self, stored: StoredLog) -> None:
        self.stored = stored


def effects_of(entry: Entry) -> Iterator[tuple[bytes, bytes]]:
    """Rows with absolute values: a message at its place, or with `+`, settled."""
    if not entry.payload:
        return
    for number, (kind, message, place) in enumerate(msgspec.msgpack.decode(entry.payload)):
        key = msgspec.msgpack.encode(tuple(message))
        yield key, b"%d" % (entry.offset + number) if kind == "publish" else b"%d+" % place


class NodeDisk:
    def __init__(self, name: str):
        self.id = name
        self.inc = 0
        self.images: dict[int, Image] = {}
        self.aside: list[Image] = []
        """Of async partitions: what it had when it was taken out."""
        self.is_damaged = False
