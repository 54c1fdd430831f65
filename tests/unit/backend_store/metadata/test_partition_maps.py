"""The rows that say which partitions a queue has: each change is durable before anybody acts on it."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from backend_store.core.partitions.slot_history import SlotBook
from backend_store.core.partitions.slots import PartitionMap, SlotTable, first_table, resized, with_opened, with_retired
from backend_store.metadata.embedded import Metadata
from backend_store.metadata.partition_maps import BOOKS, MAPS, read_book
from backend_store.model import Conflict, InvalidRequest, QueueConfig, QueueDefinition, QueueNotFound
from backend_store.storage.engine import Batch, Table
from backend_store.storage.memory import MemoryEngine

pytestmark = pytest.mark.anyio


class Disk:
    """Commits when the test lets it."""

    def __init__(self) -> None:
        self.engine = MemoryEngine()
        self.may_write = asyncio.Event()
        self.may_write.set()

    async def write(self, rows: Batch) -> None:
        await self.may_write.wait()
        self.engine.commit(rows, lambda: None)

    def metadata(self) -> Metadata:
        return Metadata(self.engine, self.write)

    def rows(self) -> int:
        """About partitions."""
        ranges = [(prefix, prefix[:-1] + b"0") for prefix in (MAPS, BOOKS)]
        return sum(len(self.engine.scan(Table.META, *one, 100)) for one in ranges)


@pytest.fixture
async def disk() -> Disk:
    return Disk()


def no_rows(after: PartitionMap, batch: Batch) -> None:
    """Nothing else changes."""


async def made(metadata: Metadata, partitions: int = 1, name: str = "q") -> QueueDefinition:
    return (await metadata.create_queue("default", name, QueueConfig(partitions=partitions), 5))[0]


async def grown(metadata: Metadata, queue: QueueDefinition, partitions: int) -> PartitionMap:
    """A plan, carried out."""
    after = await metadata.change_partitions(queue, partial(resized, partitions=partitions), no_rows)
    while after.table.moves:
        after = await metadata.change_partitions(queue, partial(with_opened, move=after.table.moves[0]), no_rows)
    return after


async def test_a_queue_that_always_had_one_partition_has_no_rows(disk: Disk) -> None:
    metadata = disk.metadata()
    queue = await made(metadata)
    assert (metadata.maps, disk.rows()) == ({}, 0)
    assert metadata.partition_map(queue.uid) == PartitionMap(queue.uid, first_table(), {0: queue.uid})


async def test_a_queue_that_begins_with_several_has_them_with_its_own_row(disk: Disk) -> None:
    metadata = disk.metadata()
    queue = await made(metadata, 3)
    known = metadata.partition_map(queue.uid)
    assert known.table == first_table(3)
    assert known.replicas[0] == queue.uid and len(set(known.replicas.values())) == 3
    assert disk.metadata().maps == {queue.uid: known}
    for number, replica in known.replicas.items():
        book = read_book(disk.engine, replica)
        assert book is not None and book.role == "open"
        assert set(book.tenures) == {slot for slot, owner in enumerate(known.table.owners) if owner == number}


async def test_numbers_of_partitions_are_not_given_to_another_queue(disk: Disk) -> None:
    metadata = disk.metadata()
    one, other = await made(metadata, 2, "one"), await made(metadata, 2, "other")
    await grown(metadata, one, 4)
    third = await made(disk.metadata(), 2, "third")
    again = disk.metadata()
    replicas = [r for uid in (one.uid, other.uid, third.uid) for r in again.partition_map(uid).replicas.values()]
    assert len(replicas) == len(set(replicas)) == 8


async def test_a_change_is_there_after_a_restart_with_empty_books_for_new_partitions(disk: Disk) -> None:
    metadata = disk.metadata()
    queue = await made(metadata)
    after = await metadata.change_partitions(queue, partial(resized, partitions=3), no_rows)
    assert after.table.moves and metadata.maps[queue.uid] is after
    assert disk.metadata().maps == {queue.uid: after}
    books = [read_book(disk.engine, after.replicas[number]) for number in range(3)]
    assert books[1:] == [SlotBook(), SlotBook()]
    assert books[0] is not None and len(books[0].tenures) == 256


async def test_nobody_sees_a_change_before_it_is_durable(disk: Disk) -> None:
    metadata = disk.metadata()
    queue = await made(metadata)
    disk.may_write.clear()
    changing = asyncio.create_task(metadata.change_partitions(queue, partial(resized, partitions=2), no_rows))
    await asyncio.sleep(0)
    assert queue.uid not in metadata.maps
    disk.may_write.set()
    assert metadata.maps == {queue.uid: await changing}


async def test_changes_take_turns_and_each_sees_the_one_before(disk: Disk) -> None:
    metadata = disk.metadata()
    queue = await made(metadata)
    disk.may_write.clear()
    first = asyncio.create_task(metadata.change_partitions(queue, partial(resized, partitions=2), no_rows))
    second = asyncio.create_task(metadata.change_partitions(queue, partial(resized, partitions=3), no_rows))
    await asyncio.sleep(0)
    disk.may_write.set()
    assert (await first).table.moves
    with pytest.raises(Conflict):
        await second


async def test_what_a_change_raises_changes_nothing(disk: Disk) -> None:
    metadata = disk.metadata()
    queue = await made(metadata)
    with pytest.raises(InvalidRequest):
        await metadata.change_partitions(queue, partial(resized, partitions=65), no_rows)
    assert (metadata.maps, disk.rows()) == ({}, 0)


async def test_a_change_that_changes_nothing_writes_nothing(disk: Disk) -> None:
    metadata = disk.metadata()
    queue = await made(metadata)
    disk.may_write.clear()
    after = await metadata.change_partitions(queue, partial(resized, partitions=1), no_rows)
    assert (after, metadata.maps, disk.rows()) == (metadata.partition_map(queue.uid), {}, 0)


async def test_rows_of_others_go_with_the_same_commit(disk: Disk) -> None:
    metadata = disk.metadata()
    queue = await made(metadata)
    commits = disk.engine.commits

    def rows(after: PartitionMap, batch: Batch) -> None:
        batch.put(Table.META, b"mine", b"%d" % after.table.version)

    after = await metadata.change_partitions(queue, partial(resized, partitions=2), rows)
    assert disk.engine.get(Table.META, b"mine") == b"%d" % after.table.version
    assert disk.engine.commits == commits + 1


async def test_the_table_of_a_deleted_queue_cannot_be_changed_and_its_rows_are_gone(disk: Disk) -> None:
    metadata = disk.metadata()
    queue = await made(metadata, 2)
    await grown(metadata, queue, 4)
    assert disk.rows() == 5
    await metadata.delete_queue("default", "q", lambda definition, batch: None)
    assert (disk.rows(), metadata.maps, disk.metadata().maps) == (0, {}, {})
    with pytest.raises(QueueNotFound):
        await metadata.change_partitions(queue, partial(resized, partitions=5), no_rows)


async def test_a_queue_made_anew_under_the_name_is_another_one(disk: Disk) -> None:
    metadata = disk.metadata()
    queue = await made(metadata, 2)
    await metadata.delete_queue("default", "q", lambda definition, batch: None)
    again = await made(metadata)
    with pytest.raises(QueueNotFound):
        await metadata.change_partitions(queue, partial(resized, partitions=3), no_rows)
    assert metadata.maps == {} and metadata.partition_map(again.uid).replicas == {0: again.uid}


async def test_the_partitions_of_a_queue_that_moves_away_are_known_until_it_is_empty(disk: Disk) -> None:
    metadata = disk.metadata()
    queue = await made(metadata, 2)
    known = metadata.partition_map(queue.uid)
    moved = await metadata.move_queue("default", "q", "elsewhere", 99)
    assert disk.metadata().maps == {queue.uid: known}
    with pytest.raises(QueueNotFound):
        await metadata.change_partitions(queue, partial(resized, partitions=3), no_rows)
    await metadata.emptied(moved, lambda batch: None)
    assert (disk.rows(), metadata.maps) == (0, {})


async def test_a_partition_that_comes_again_has_the_rows_it_had(disk: Disk) -> None:
    metadata = disk.metadata()
    queue = await made(metadata, 2)
    before = metadata.partition_map(queue.uid)

    def gone(table: SlotTable) -> SlotTable:
        return with_retired(table, 1, table.members[1].since)

    await grown(metadata, queue, 1)
    after = await metadata.change_partitions(queue, gone, no_rows)
    assert after.table.members[1].role == "retired" and after.replicas == before.replicas
    again = await grown(metadata, queue, 3)
    assert again.replicas.items() >= before.replicas.items() and len(again.replicas) == 3
