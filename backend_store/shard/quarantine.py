"""The quarantine of one copy: confirmed messages that were truncated from its log, as rows beside the log.

They are written in the transaction that truncates the log, so a kill leaves either the tail or what is kept of it.

    k EPOCH OFFSET NUMBER   a chunk of which messages are kept: chunk NUMBER of the entry at that place

An epoch and an offset name the same entry on every disk, so copies of the same message are recognized.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from backend_store.core.log.records import EpochStart, PartitionState
from backend_store.core.log.sublogs import VIEW_MAIN
from backend_store.core.partitions.slots import PartitionMap
from backend_store.core.replication.entries import decode
from backend_store.core.replication.stranded import Happened, Sifter, Written, where
from backend_store.metadata.embedded import QUEUES
from backend_store.metadata.partition_maps import MAPS
from backend_store.model import Epoch, QueueDefinition
from backend_store.node.log.apply import decode_bits, decode_mark
from backend_store.storage.engine import Changes, Row, Rows, Table
from backend_store.storage.keys import parse_entry_key, parse_mark_key, parse_timed_key
from backend_store.storage.seal import seal, unseal

_KEPT: Final = struct.Struct(">cQQI")
_PREFIX: Final = b"k"
_ROWS_PER_READ: Final = 64
_STATE: Final = b"state/"
ENTRY_CHUNKS_MAX: Final = 1 << 20
"""More chunks than an entry can have, by its bytes."""
_definition = msgspec.msgpack.Decoder(QueueDefinition).decode
_map = msgspec.msgpack.Decoder(PartitionMap).decode
_state = msgspec.msgpack.Decoder(PartitionState).decode
_encode = msgspec.msgpack.Encoder().encode

Tail = Iterator[tuple[bytes, dict[Table, Rows], dict[Table, Rows] | None]]
"""Entries in descending order: stored bytes, rows, and the rows that these replaced, where they are still known."""


class Kept(msgspec.Struct, frozen=True, array_like=True):
    """One row. `bits`: the chunk's messages that are kept. `is_in_doubt`: the leader's log may have them, too."""

    version: int
    tenant: str
    queue: str
    """Empty, and `uid` 0, where the queue was not known any more."""
    uid: int
    partition: int
    replica: int
    shelf: int
    base: int
    bits: bytes
    data: bytes
    dues: tuple[tuple[int, int], ...]
    confirmed_ms: int
    aside_ms: int
    """When it was truncated from the log."""
    is_in_doubt: bool
    begun_ms: int = 0
    """When an operator began to publish it again; 0: not begun."""

    @property
    def number_of_messages(self) -> int:
        return int.from_bytes(self.bits, "little").bit_count()


class Place(NamedTuple):
    """The identity of a chunk: the same on every disk."""

    epoch: int
    offset: int
    number: int


class Owner(NamedTuple):
    tenant: str
    queue: str
    uid: int
    partition: int


_kept = msgspec.msgpack.Decoder(Kept).decode
NOBODY: Final = Owner("", "", 0, 0)


class Tally:
    """Number and bytes of the messages that one copy keeps."""

    __slots__ = ("bytes", "messages")

    def __init__(self, messages: int = 0, size: int = 0) -> None:
        self.messages = messages
        self.bytes = size

    def add(self, kept: Kept) -> None:
        self.messages += kept.number_of_messages
        self.bytes += len(kept.data)

    def drop(self, kept: Kept) -> None:
        self.messages -= kept.number_of_messages
        self.bytes -= len(kept.data)


class Base(NamedTuple):
    """What is known of the leader's log: its epochs, up to `end`."""

    epochs: Sequence[EpochStart]
    end: int


def key_of(place: Place) -> bytes:
    return _KEPT.pack(_PREFIX, *place)


def place_of(key: bytes) -> Place:
    _, epoch, offset, number = _KEPT.unpack(key)
    return Place(epoch, offset, number)


def put(changes: Changes, place: Place, kept: Kept) -> None:
    key = key_of(place)
    changes.put_all(Table.REPLICATION, [(key, seal(key, _encode(kept)))])


def keep(changes: Changes, tail: Tail, tally: Tally, *, shard: int, now_ms: int, base: Base | None) -> None:
    """Quarantines the confirmed messages of a tail that is about to be truncated.

    `base`: the leader's log, unless that is known to lack all of the tail. Raises `StorageCorrupt`, `CorruptEntry`.
    """
    sifter, owners = Sifter(), _owners(changes)
    for data, rows, replaced in tail:
        entry = decode(data, partition=shard)
        fate = "lacked" if base is None else where(entry.epoch, entry.offset, base.epochs, base.end)
        number = 0
        for happened in _happened(rows, replaced, owners):
            for one in sifter.take(happened):
                if fate == "there":
                    continue
                place = Place(entry.epoch, entry.offset, number)
                number += 1
                if one_of(changes, place) is None:  # else it was truncated before, and appended again
                    owner = owners.get(happened.replica, NOBODY)
                    bits = one.bits.to_bytes((one.bits.bit_length() + 7) // 8, "little")
                    kept = Kept(
                        1,
                        *owner,
                        happened.replica,
                        one.shelf,
                        one.base,
                        bits,
                        one.data,
                        one.dues,
                        entry.time_ms,
                        now_ms,
                        is_in_doubt=fate == "unknown",
                    )
                    put(changes, place, kept)
                    tally.add(kept)


def _owners(changes: Changes) -> dict[int, Owner]:
    """Replica → the partition that owns it, from the state before the truncation."""
    maps: dict[int, PartitionMap] = {}
    for key, value in _all(changes, MAPS):
        found = _map(unseal(key, value))
        maps[found.uid] = found
    owners: dict[int, Owner] = {}
    for key, value in _all(changes, QUEUES):
        one = _definition(unseal(key, value))
        replicas = maps[one.uid].replicas if one.uid in maps else {0: one.uid}
        for number, replica in replicas.items():
            owners[replica] = Owner(one.tenant, one.name, one.uid, number)
    return owners


def _all(changes: Changes, prefix: bytes) -> Iterator[Row]:
    start, end = prefix, prefix[:-1] + bytes([prefix[-1] + 1])
    while found := changes.scan(Table.META, start, end, _ROWS_PER_READ):
        yield from found
        start = found[-1][0] + b"\0"


def _happened(
    rows: dict[Table, Rows], replaced: dict[Table, Rows] | None, owners: dict[int, Owner]
) -> Iterator[Happened]:
    """The rows of one entry, partition by partition."""
    chunks: dict[int, list[Written]] = {}
    settled: dict[int, dict[tuple[int, int], int]] = {}
    dues: dict[int, dict[int, list[tuple[int, int]]]] = {}
    floors: dict[int, dict[int, int]] = {}
    for table in (Table.LOG, Table.LANES):
        before = None if replaced is None else replaced.get(table, {})
        for key, value in rows.get(table, {}).items():
            replica, shelf, offset = parse_entry_key(key)
            is_new = None if before is None else before.get(key) is None
            chunks.setdefault(replica, []).append(Written(shelf, offset, value, is_new))
    for key, value in rows.get(Table.MARKS, {}).items():
        if value is not None:
            replica, view, offset = parse_mark_key(key)
            settled.setdefault(replica, {})[view, offset] = decode_mark(unseal(key, value))[0]
    for key, value in rows.get(Table.DUE, {}).items():
        if value is not None:
            replica, due_ms, offset = parse_timed_key(key)
            _, bits = decode_bits(unseal(key, value))
            dues.setdefault(replica, {}).setdefault(offset, []).append((due_ms, bits))
    for key, value in rows.get(Table.META, {}).items():
        if value is not None and key.startswith(_STATE):
            replica = int.from_bytes(key.removeprefix(_STATE), "big")
            state = _state(unseal(key, value))
            views = {view: tally.floor for view, tally in state.views.items()}
            floors[replica] = {VIEW_MAIN: state.floor, **views}
    for replica in sorted({*chunks, *settled, *floors}):
        yield Happened(
            replica,
            owners.get(replica, NOBODY).partition,
            chunks.get(replica, ()),
            settled.get(replica, {}),
            dues.get(replica, {}),
            floors.get(replica, {}),
        )


# ------------------------------------------------------------------------------------------------------- reading


def rows_from(changes: Changes, limit: int) -> list[Row]:
    """All rows as they are stored, to be copied into another environment."""
    return changes.scan(Table.REPLICATION, _PREFIX, b"l", limit)


def still_lacked(rows: list[Row], base: Base, tally: Tally) -> list[Row]:
    """Returns the rows except those whose entries the log of `base` has; these are subtracted from the tally."""
    left = []
    for key, value in rows:
        place = place_of(key)
        if where(Epoch(place.epoch), place.offset, base.epochs, base.end) == "there":
            tally.drop(_kept(unseal(key, value)))
        else:
            left.append((key, value))
    return left


def kept_from(changes: Changes, after: Place | None, *, epoch: int | None = None) -> Iterator[tuple[Place, Kept]]:
    """Rows after `after`, in order; `epoch`: only what was confirmed in that leadership. Raises `StorageCorrupt`."""
    first, last = (0, 1 << 64) if epoch is None else (epoch, epoch + 1)
    start = key_of(Place(first, 0, 0)) if after is None else key_of(after) + b"\0"
    end = b"l" if last >= 1 << 64 else key_of(Place(last, 0, 0))
    while found := changes.scan(Table.REPLICATION, start, end, _ROWS_PER_READ):
        for key, value in found:
            yield place_of(key), _kept(unseal(key, value))
        start = found[-1][0] + b"\0"


def one_of(changes: Changes, place: Place) -> Kept | None:
    key = key_of(place)
    value = changes.get(Table.REPLICATION, key)
    return None if value is None else _kept(unseal(key, value))


def tally_of(changes: Changes) -> Tally:
    """Raises `StorageCorrupt`."""
    tally = Tally()
    for _, kept in kept_from(changes, None):
        tally.add(kept)
    return tally


# ------------------------------------------------------------------------------------------------------ changing


def forget(changes: Changes, places: Sequence[Place], tally: Tally) -> None:
    for place in places:
        kept = one_of(changes, place)
        if kept is not None:
            changes.delete(Table.REPLICATION, key_of(place))
            tally.drop(kept)


def forget_entry(changes: Changes, epoch: int, offset: int, tally: Tally) -> None:
    """Forgets an entry's chunks, because the log has the entry after all."""
    start, end = key_of(Place(epoch, offset, 0)), key_of(Place(epoch, offset + 1, 0))
    found = changes.scan(Table.REPLICATION, start, end, ENTRY_CHUNKS_MAX)
    forget(changes, [place_of(key) for key, _ in found], tally)


def begin(changes: Changes, places: Sequence[Place], now_ms: int) -> None:
    """Records when republishing of these chunks began; 0: it did not begin after all."""
    for place in places:
        kept = one_of(changes, place)
        if kept is not None and (not kept.begun_ms or not now_ms):
            put(changes, place, msgspec.structs.replace(kept, begun_ms=now_ms))
