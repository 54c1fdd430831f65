"""The rows that say which partitions a queue has, and since when a partition has its slots."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from backend_store.core.partitions.slot_history import SlotBook, first_book
from backend_store.core.partitions.slots import SLOTS, Member, PartitionMap, SlotTable, first_table
from backend_store.storage.engine import Batch, Engine, Table
from backend_store.storage.seal import seal, unseal

MAPS = b"slots/"
BOOKS = b"book/"

_encode = msgspec.msgpack.Encoder().encode
_book = msgspec.msgpack.Decoder(SlotBook)


def map_key(uid: int) -> bytes:
    return MAPS + uid.to_bytes(8, "big")


def stage_map(batch: Batch, after: PartitionMap) -> None:
    key = map_key(after.uid)
    batch.put(Table.META, key, seal(key, _encode(after)))


def book_key(replica: int) -> bytes:
    return BOOKS + replica.to_bytes(4, "big")


def stage_book(batch: Batch, replica: int, book: SlotBook) -> None:
    key = book_key(replica)
    batch.put(Table.META, key, seal(key, _encode(book)))


def read_book(engine: Engine, replica: int) -> SlotBook | None:
    """None for a partition of a queue that never had a plan. Raises `StorageCorrupt`."""
    key = book_key(replica)
    row = engine.get(Table.META, key)
    return _book.decode(unseal(key, row)) if row is not None else None


def only_partition(uid: int) -> PartitionMap:
    """The map of a queue that never had another partition: it has no row."""
    return PartitionMap(uid, first_table(), {0: uid})


def lane_of(uid: int, lane: int, batch: Batch) -> PartitionMap:
    """The map of a queue that has one lane here, and the others at other hosts; stages its rows.

    Positions and receipts name the lane, so they cannot be mistaken for another lane's. The lane table says which slots
    are at home in the lane: in this map it has all of them.
    """
    owners = (lane,) * SLOTS
    table = SlotTable(1, owners, owners, {lane: Member("open", 1)})
    after = PartitionMap(uid, table, {lane: uid})
    stage_map(batch, after)
    stage_book(batch, uid, first_book(table, lane))
    return after


def founded(uid: int, partitions: int, new_replica: Callable[[], int], batch: Batch) -> PartitionMap:
    """The map of a queue that begins with several partitions; stages its rows."""
    table = first_table(partitions)
    after = PartitionMap(uid, table, {0: uid, **{number: new_replica() for number in range(1, partitions)}})
    stage_map(batch, after)
    for number, replica in after.replicas.items():
        stage_book(batch, replica, first_book(table, number))
    return after


def changed(
    before: PartitionMap, table: SlotTable, *, is_first: bool, new_replica: Callable[[], int], batch: Batch
) -> PartitionMap:
    """A map with another table; stages its rows. `is_first`: neither the queue nor its partition had a row before."""
    replicas = dict(before.replicas)
    for number in table.members:
        if number not in replicas:
            replicas[number] = new_replica()
            stage_book(batch, replicas[number], SlotBook())
    if is_first:
        stage_book(batch, replicas[0], first_book(before.table, 0))
    after = PartitionMap(before.uid, table, replicas)
    stage_map(batch, after)
    return after
