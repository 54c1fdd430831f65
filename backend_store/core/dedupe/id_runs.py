"""Deduplication on disk: ids are stored in runs, sorted by hash, so that a look-up is one read per run.

    record = hash (16 bytes) | time i64, inverted: the newest message of a hash comes first | offset u64
    row    = up to 127 records; its key ends with the last of them: a hash is in the first row at or above it
    arrival row = version u8 | group | group | …        group = time i64 | count u32 | hashes | offsets, little-endian

Ids arrive in the order of time and are looked up by hash. So they are first appended as they arrive, in arrival rows; a
full dict becomes a run, and sixteen runs of a level become one of the next, as in an LSM tree. Each step writes rows in
the order of their keys: ids written straight to their final place dirty a page each, which halves the commit rate.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cache
from itertools import chain
from operator import add
from typing import NamedTuple, Protocol

import msgspec

HASH_BYTES = 16
RECORD = struct.Struct(">16sqQ")
RECORD_BYTES = RECORD.size
_TAIL_BYTES = RECORD_BYTES - HASH_BYTES
_U64_MAX = (1 << 64) - 1
ROW_RECORDS_MAX = 127
"""127 records, a checksum and LMDB's own header fill one page of 4 KiB."""
LEVEL_MAX = 2
"""Runs of this level are not merged: a run is deleted when its last id is out of the window, and a bigger one would
keep expired ids for too long."""
FORMAT_VERSION = 1

_HASH = struct.Struct(f"{HASH_BYTES}s")
_GROUP = struct.Struct(">qI")
_BUCKETS = 16
_BUCKET_ENDS = [*(bytes([first << 4]) for first in range(1, _BUCKETS)), b"\xff" * (RECORD_BYTES + 1)]


class Known(NamedTuple):
    """The message that first had an id."""

    offset: int
    time_ms: int


# -------------------------------------------------------------------------------------------------------- arrivals


class Arrivals(NamedTuple):
    """Ids that arrived at one time."""

    time_ms: int
    hashes: list[bytes]
    offsets: array[int]


def pack_arrivals(time_ms: int, hashes: bytes, offsets: array[int]) -> bytes:
    """Returns one group of an arrival row; `hashes` are concatenated."""
    return b"".join((_GROUP.pack(time_ms, len(offsets)), hashes, _little_endian(offsets).tobytes()))


def arrival_row(groups: Iterable[bytes]) -> bytes:
    return b"".join((bytes([FORMAT_VERSION]), *groups))


def read_arrivals(row: bytes) -> Iterator[Arrivals]:
    """Yields the groups of an arrival row. Raises `ValueError` if it is of another version."""
    _check_version(row[0], "an arrival row")
    at = 1
    while at < len(row):
        time_ms, count = _GROUP.unpack_from(row, at)
        at += _GROUP.size
        middle = at + HASH_BYTES * count
        end = middle + 8 * count
        hashes = list(chain.from_iterable(_HASH.iter_unpack(row[at:middle])))
        yield Arrivals(time_ms, hashes, _little_endian(array("Q", row[middle:end])))
        at = end


def _little_endian(column: array[int]) -> array[int]:
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    return column


def _check_version(version: int, what: str) -> None:
    if version != FORMAT_VERSION:
        raise ValueError(f"{what} of version {version}: this program reads version {FORMAT_VERSION}")


# ------------------------------------------------------------------------------------------------------------ runs


class Run(msgspec.Struct, frozen=True, array_like=True):
    """A run of ids, stored in rows under its number."""

    number: int
    level: int
    count: int
    oldest_ms: int
    newest_ms: int


class Manifest(msgspec.Struct, frozen=True, array_like=True):
    """The valid runs, oldest first. Rows of any other run are left from a crash, or about to be deleted."""

    version: int
    runs: tuple[Run, ...]


_manifest = msgspec.msgpack.Decoder(Manifest)


def encode_manifest(runs: Sequence[Run]) -> bytes:
    return msgspec.msgpack.encode(Manifest(FORMAT_VERSION, tuple(runs)))


def decode_manifest(row: bytes) -> list[Run]:
    """Decodes a manifest. Raises `ValueError` if it is of another version."""
    manifest = _manifest.decode(row)
    _check_version(manifest.version, "a list of id runs")
    return list(manifest.runs)


def find(row: bytes, hash_: bytes) -> Known | None:
    """Returns the newest message with this hash in a run's row, or None."""
    at = row.find(hash_)
    while at % RECORD_BYTES and at >= 0:
        at = row.find(hash_, at + 1)
    if at < 0:
        return None
    _, inverted, offset = RECORD.unpack_from(row, at)
    return Known(offset, ~inverted)


@cache
def _cutter(layout: str, count: int) -> Callable[[bytes], tuple[bytes, ...]]:
    """Returns a function that cuts a row of `count` records in one call: four times as fast as `iter_unpack`, which
    makes a tuple of each.
    """
    return struct.Struct(layout * count).unpack


def tails(time_ms: int, offsets: array[int]) -> array[int]:
    """Returns the rest of the records of ids of one time, behind their hashes: pairs of inverted time and offset."""
    found = array("Q", [~time_ms & _U64_MAX]) * (2 * len(offsets))
    found[1::2] = offsets
    return found


def records(hashes: Sequence[bytes], tails: array[int]) -> list[bytes]:
    """Returns the records, built column by column: three times as fast as one `pack` per record. Changes `tails`."""
    if sys.byteorder == "little":
        tails.byteswap()
    return list(map(add, hashes, _cutter(f"{_TAIL_BYTES}s", len(hashes))(tails.tobytes())))


def records_of(row: bytes) -> tuple[bytes, ...]:
    return _cutter(f"{RECORD_BYTES}s", len(row) // RECORD_BYTES)(row)


def hashes_of(row: bytes) -> tuple[bytes, ...]:
    return _cutter(f"{HASH_BYTES}s{RECORD_BYTES - HASH_BYTES}x", len(row) // RECORD_BYTES)(row)


def plan_merge(runs: Sequence[Run], level: int, *, count: int, avoid: Collection[int]) -> list[Run]:
    """Returns the oldest `count` adjacent runs of a level that may be merged; none if there are fewer.

    Only adjacent runs, so that the order of runs stays the order of time, and the newest message of a hash is found
    first.
    """
    found: list[Run] = []
    for run in runs:
        if run.level != level or run.number in avoid:
            found = []
            continue
        found.append(run)
        if len(found) == count:
            return found
    return []


# ---------------------------------------------------------------------------------------------------- building runs


class Stream:
    """A run that is being read in the order of its hashes, a few rows at a time."""

    __slots__ = ("run", "records", "after", "is_ended")

    def __init__(self, run: Run):
        self.run = run
        self.records: list[bytes] = []
        self.after = b""
        """Where the next read begins, as the end of a row's key."""
        self.is_ended = False

    def feed(self, rows: Sequence[tuple[bytes, bytes]], *, is_last: bool) -> None:
        """Takes (end of the key, row) pairs; `is_last`: there are no more."""
        for key, row in rows:
            self.records += records_of(row)
            self.after = key + b"\0"
        self.is_ended = is_last


class Source(Protocol):
    """The source of the records of a run that is being built."""

    @property
    def is_done(self) -> bool: ...

    @property
    def runs(self) -> Sequence[Run]:
        """The runs that the new run replaces."""

    def hungry(self) -> list[Stream]:
        """Returns the streams that must be fed before the next `take`."""

    def take(self) -> list[bytes]:
        """Returns the next records, in order; several calls may return none before there are some."""


class Freeze:
    """The ids of a full dict as a source. Sorting all of them at once would delay a commit, so they are sorted in parts
    and distributed into buckets by their first bits; the sorted parts of a bucket are merged when it is taken.
    """

    runs: Sequence[Run] = ()

    def __init__(self, parts: Iterable[list[bytes]]):
        self._parts = iter(parts)
        self._is_dealt = False
        self._buckets: list[list[bytes]] = [[] for _ in range(_BUCKETS)]

    @property
    def is_done(self) -> bool:
        return not self._buckets

    def hungry(self) -> list[Stream]:
        return []

    def take(self) -> list[bytes]:
        if self._is_dealt:
            bucket = self._buckets.pop(0)
            bucket.sort()
            return bucket
        part = next(self._parts, None)
        if part is None:
            self._is_dealt = True
            return []
        part.sort()
        start = 0
        for bucket, bound in zip(self._buckets, _BUCKET_ENDS, strict=True):
            end = bisect_left(part, bound, start)
            bucket += part[start:end]
            start = end
        return []


class Merge:
    """Adjacent runs as a source, merged into one run (compaction)."""

    def __init__(self, runs: Sequence[Run]):
        self.runs = runs
        self._streams = [Stream(run) for run in runs]

    @property
    def is_done(self) -> bool:
        return all(stream.is_ended and not stream.records for stream in self._streams)

    def hungry(self) -> list[Stream]:
        return [s for s in self._streams if not s.is_ended and len(s.records) < ROW_RECORDS_MAX]

    def take(self) -> list[bytes]:
        """Returns all records up to the lowest end of what was read of a stream: later records are behind it."""
        bound = min((s.records[-1] for s in self._streams if not s.is_ended), default=None)
        taken: list[bytes] = []
        for stream in self._streams:
            records = stream.records
            cut = len(records) if bound is None else bisect_right(records, bound)
            taken += records[:cut]
            del records[:cut]
        # `list.sort` detects the sixteen sorted parts and merges them.
        taken.sort()
        return taken


class Build:
    """A run that is being built: sorted records in, full rows out. It is not read before it is complete."""

    def __init__(self, source: Source, *, number: int, level: int, oldest_ms: int, newest_ms: int):
        self.source = source
        self.number = number
        self.level = level
        self._oldest_ms = oldest_ms
        self._newest_ms = newest_ms
        self._count = 0
        self._rest: list[bytes] = []

    def cut(self, records: list[bytes]) -> list[list[bytes]]:
        """Returns full rows of the records so far; after the source's last records also the rest."""
        rest = self._rest + records
        end = len(rest) if self.source.is_done else len(rest) // ROW_RECORDS_MAX * ROW_RECORDS_MAX
        self._rest = rest[end:]
        self._count += end
        return [rest[at : min(at + ROW_RECORDS_MAX, end)] for at in range(0, end, ROW_RECORDS_MAX)]

    def run(self) -> Run:
        assert self.source.is_done and not self._rest
        return Run(self.number, self.level, self._count, self._oldest_ms, self._newest_ms)
