"""A node over its life: what it finds at start, what it keeps at the end, and what it cleans up in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from backend_store.client.embedded import EmbeddedQueue, EmbeddedStore
from backend_store.core.leases.leases import Lease
from backend_store.core.leases.session_snapshot import KeptSession
from backend_store.core.log.chunk import KIND_JSON, Draft, blocks_of, plain_blocks
from backend_store.core.log.cursor import encode_cursor
from backend_store.core.log.sublogs import VIEW_MAIN
from backend_store.model import Block, Epoch, Published, PushqError, QueueConfig, QueueNotFound, Verdict
from backend_store.node import node as node_module
from backend_store.node.limits import EPOCHS_MAX
from backend_store.node.node import Node
from backend_store.storage.engine import Batch, Table
from backend_store.storage.keys import META_RESTORED, lease_key, log_key, log_range
from backend_store.storage.memory import MemoryEngine
from backend_store.storage.seal import seal
from tests.support.patience import eventually
from tests.support.storage import all_rows
from tests.support.world import Consumer, receipts_by_seq

pytestmark = pytest.mark.anyio

Open = Callable[..., Awaitable[EmbeddedStore]]
STREAM = QueueConfig(kind="stream")


@pytest.fixture
async def opened() -> AsyncIterator[Open]:
    """Opens a store over an engine; what is still open at the end is closed."""
    nodes: list[Node] = []

    async def open_node(engine: MemoryEngine | None = None, epoch: int = 1) -> EmbeddedStore:
        node = Node(engine or MemoryEngine(), directory=None, on_fatal=lambda error: None, epoch=Epoch(epoch))
        nodes.append(node)
        await node.start()
        return EmbeddedStore(node)

    yield open_node
    for node in nodes:
        for task in node._tasks:
            task.cancel()
        await asyncio.gather(*node._tasks, return_exceptions=True)
        if node._timer is not None:
            node._timer.cancel()
        await node.writer.close()


def engine_of(store: EmbeddedStore) -> MemoryEngine:
    assert isinstance(store.node.engine, MemoryEngine)
    return store.node.engine


def copy_of(engine: MemoryEngine) -> MemoryEngine:
    image = MemoryEngine()
    image._rows = {table: dict(rows) for table, rows in engine._rows.items()}
    image._keys = {table: list(keys) for table, keys in engine._keys.items()}
    return image


async def made(store: EmbeddedStore, name: str = "q", config: QueueConfig | None = None) -> EmbeddedQueue:
    queue, _ = await store.create_queue("default", name, config or QueueConfig())
    return queue


async def publish(queue: EmbeddedQueue, *bodies: bytes) -> Published:
    return await sent(queue, plain_blocks(KIND_JSON, list(bodies)))


async def sent(queue: EmbeddedQueue, blocks: list[Block]) -> Published:
    done: asyncio.Future[Published | PushqError] = asyncio.get_running_loop().create_future()
    queue.publish(blocks, done.set_result)
    found = await done
    if isinstance(found, PushqError):
        raise found
    return found


async def ack(queue: EmbeddedQueue, *receipts: str) -> list[bool]:
    done: asyncio.Future[list[Verdict] | PushqError] = asyncio.get_running_loop().create_future()
    queue.settle(list(receipts), done.set_result)
    found = await done
    assert isinstance(found, list)
    return [verdict.ok for verdict in found]


def leased(queue: EmbeddedQueue, limit: int = 10, visibility_ms: int = 30_000, holder: Consumer | None = None) -> Lease:
    lease = queue.take(limit, holder or Consumer(), visibility_ms)
    assert lease is not None
    return lease


async def test_messages_and_counts_are_there_after_a_crash(opened: Open) -> None:
    store = await opened()
    queue = await made(store)
    await publish(queue, b"1", b"2", b"3")
    first = next(iter(receipts_by_seq(leased(queue, 1)).values()))
    await ack(queue, first)
    again = (await opened(engine_of(store).crash())).queue("default", "q")
    stats = again.stats()
    assert (stats.ready, stats.in_flight, stats.published_total, stats.acked_total) == (2, 0, 3, 1)
    assert list(receipts_by_seq(leased(again))) == [1, 2]


async def test_a_clean_stop_keeps_leases_and_sessions_for_the_next_start_only(opened: Open) -> None:
    store = await opened()
    queue = await made(store)
    await publish(queue, b"1", b"2")
    lease = leased(queue)
    receipts = receipts_by_seq(lease)
    session = KeptSession("s", "p", {"default/q": [lease.token]})
    await store.close([session])
    second = await opened(engine_of(store).crash())
    queue = second.queue("default", "q")
    assert (queue.stats().in_flight, queue.stats().ready) == (2, 0)
    sessions, leases = second.take_kept()
    assert (sessions, list(leases)) == ([session], [lease.token])
    assert second.take_kept() == ([], {})
    assert await ack(queue, receipts[0]) == [True]
    third = await opened(engine_of(second).crash())
    assert third.take_kept() == ([], {})
    assert third.queue("default", "q").stats().ready == 1


async def test_nothing_is_kept_for_a_gateway_that_never_comes_back_once_its_leases_have_ended(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was there for as long as the process led: a gateway that is started anew has another name."""
    monkeypatch.setattr("backend_store.node.node.KEPT_LOOK_SECONDS", 0.01)
    store = await opened()
    queue = await made(store, config=QueueConfig(lease_mode="replicated"))
    for visibility_ms in (100, 600_000):
        await publish(queue, b"1")
        holder = Consumer()
        holder.gateway = f"gateway-{visibility_ms}"
        lease = leased(queue, 1, visibility_ms, holder)
        await eventually(lambda lease=lease: lease.durable)  # type: ignore[misc]
    node = (await opened(engine_of(store).crash())).node
    assert sorted(node.kept_at) == ["gateway-100", "gateway-600000"] and len(node.kept_leases) == 2
    await eventually(lambda: len(node.kept_leases) == 1)
    assert list(node.kept_at) == ["gateway-600000"]


async def test_a_clean_stop_in_the_middle_of_sorting_ids_is_clean(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opened()
    queue = await made(store, config=QueueConfig(dedupe="id"))
    [partition] = store.node.queues.of(queue.definition).all
    number = 0
    while not partition.ids.is_busy:
        drafts = [Draft(KIND_JSON, b"1", None, dedupe=(number + n).to_bytes(16, "big")) for n in range(1000)]
        number += len(drafts)
        await sent(queue, blocks_of(drafts).blocks)
    cycles: list[int] = []
    await store.close()
    monkeypatch.setattr(partition, "prepare", lambda batch: cycles.append(1))
    await asyncio.sleep(0.05)
    assert not cycles, "a commit began after the environment was closed"


async def test_a_lease_ends_by_the_nodes_own_timer(opened: Open) -> None:
    queue = await made(await opened())
    await publish(queue, b"1")
    consumer = Consumer()
    lease = leased(queue, 1, visibility_ms=100, holder=consumer)
    await eventually(lambda: queue.stats().ready == 1)
    assert consumer.lost_receipts == [lease.token + "00"]


async def test_each_lease_ends_at_its_own_time_whatever_was_armed_before(opened: Open) -> None:
    queue = await made(await opened())
    await publish(queue, b"1", b"2", b"3")
    loop = asyncio.get_running_loop()
    began = loop.time()
    consumers = [Consumer() for _ in range(3)]
    for consumer, visibility_ms in zip(consumers, (600_000, 120, 200), strict=True):
        leased(queue, 1, visibility_ms, consumer)
    for number, seconds in ((1, 0.12), (2, 0.2)):
        await eventually(lambda number=number: bool(consumers[number].lost_receipts))  # type: ignore[misc]
        assert loop.time() - began >= seconds
    assert not consumers[0].lost_receipts


@pytest.mark.parametrize("fails", ["tick", "next_wakeup_ms"])
async def test_a_queue_that_fails_on_its_timer_stops_no_other_clock_and_is_looked_at_again(
    opened: Open, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    monkeypatch.setattr("backend_store.node.node.FAILED_TICK_MS", 100)
    said: list[str] = []  # the stack of an exception takes long to draw
    monkeypatch.setattr(node_module.log, "exception", lambda event, **facts: said.append(facts["queue"]))
    store = await opened()
    broken, whole = await made(store, "broken"), await made(store, "whole")
    found: list[float] = []

    def fail(*_: object) -> None:
        found.append(asyncio.get_running_loop().time())
        raise AssertionError("a fault of ours")

    partition = store.node.queues.of(broken.definition).first
    consumer = Consumer()
    for queue, visibility_ms, holder in ((broken, 20, Consumer()), (whole, 30, consumer)):
        await publish(queue, b"1")
        leased(queue, 1, visibility_ms, holder)
    monkeypatch.setattr(partition, fails, fail)
    await eventually(lambda: bool(consumer.lost_receipts) and len(found) > 1)
    assert found[1] - found[0] >= 0.09, "a fault must not be met again and again without end"
    assert said[0] == "broken"


async def test_a_kept_lease_whose_time_is_over_returns_at_the_next_start(opened: Open) -> None:
    store = await opened()
    queue = await made(store)
    await publish(queue, b"1")
    leased(queue, 1, visibility_ms=100)
    await store.close()
    await asyncio.sleep(0.12)
    queue = (await opened(engine_of(store).crash())).queue("default", "q")
    await eventually(lambda: queue.stats().ready == 1)


async def test_a_purge_sweeps_its_rows_and_leaves_what_came_after(opened: Open) -> None:
    store = await opened()
    queue = await made(store)
    for _ in range(10):
        await publish(queue, b"1", b"2")
    leased(queue, 1)
    purge = await queue.purge("p1")
    assert (purge.total, queue.purges["p1"]) == (20, purge)
    kept = await publish(queue, b"after")
    uid = queue.definition.uid
    await eventually(lambda: list(all_rows(engine_of(store), Table.LOG)) == [log_key(uid, kept.base)])
    await eventually(lambda: not [key for key in all_rows(engine_of(store), Table.META) if key.startswith(b"garbage/")])
    assert all_rows(engine_of(store), Table.MARKS) == {}


async def test_rows_that_cannot_be_swept_leave_none_of_other_queues_behind(opened: Open) -> None:
    """As those that a later version has written. Nothing was swept any more, at the next start neither."""
    store = await opened()
    strange, other = await made(store, "strange"), await made(store, "other")
    await publish(other, b"1")
    key, batch = lease_key(strange.definition.uid, VIEW_MAIN, 1), Batch()
    batch.put(Table.LEASES, key, seal(key, b"\xc1"))
    await store.node.committer.write(batch)
    await strange.purge("p")
    await other.purge("p")
    await eventually(lambda: not all_rows(engine_of(store), Table.LOG), within_s=5)
    assert [*all_rows(engine_of(store), Table.LEASES)] == [key]


async def test_a_purge_during_a_sweep_is_swept_as_well(opened: Open) -> None:
    store = await opened()
    queue = await made(store)
    for _ in range(5):
        await publish(queue, *[b"1"] * 5)
        await asyncio.gather(queue.purge("a"), queue.purge("b"))
    await eventually(lambda: all_rows(engine_of(store), Table.LOG) == {})
    await eventually(lambda: not [key for key in all_rows(engine_of(store), Table.META) if key.startswith(b"garbage/")])


async def test_a_sweep_that_a_crash_ended_goes_on_at_the_next_start(opened: Open) -> None:
    store = await opened()
    queue = await made(store)
    await publish(queue, b"1")
    store.node._tasks[0].cancel()  # no sweeper
    await queue.purge("p")
    assert all_rows(engine_of(store), Table.LOG) != {}
    again = await opened(engine_of(store).crash())
    await eventually(lambda: all_rows(engine_of(again), Table.LOG) == {})


async def test_a_deleted_queue_leaves_nothing_behind_whatever_was_under_way(opened: Open) -> None:
    store = await opened()
    queue = await made(store)
    await publish(queue, *[b"1"] * 20)
    lease = leased(queue)
    uid = queue.definition.uid
    results = await asyncio.gather(
        *(publish(queue, b"x") for _ in range(5)),
        store.delete_queue("default", "q"),
        *(publish(queue, b"y") for _ in range(5)),
        return_exceptions=True,
    )
    assert all(isinstance(r, Published | QueueNotFound | EmbeddedQueue) for r in results)
    with pytest.raises(QueueNotFound):
        await publish(queue, b"z")
    queue.give_back_lease(lease)
    await store.node.committer.drain()
    start, end = log_range(uid)

    def is_gone() -> bool:
        engine = engine_of(store)
        rows = [engine.scan(table, start, end, 1) for table in (Table.LOG, Table.MARKS, Table.RETRY)]
        meta = all_rows(engine, Table.META)
        return rows == [[], [], []] and not any(key.startswith((b"garbage/", b"state/", b"queue/")) for key in meta)

    await eventually(is_gone)


async def test_a_queue_made_again_under_the_same_name_is_empty_and_knows_no_old_receipt(opened: Open) -> None:
    store = await opened()
    queue = await made(store)
    await publish(queue, b"old")
    receipt = next(iter(receipts_by_seq(leased(queue)).values()))
    await store.delete_queue("default", "q")
    again = await made(store)
    assert again.definition.uid != queue.definition.uid and again.stats().ready == 0
    await publish(again, b"new")
    assert await ack(again, receipt) == [False]


async def test_a_restored_folder_is_a_new_epoch_even_when_it_crashes_at_once(opened: Open) -> None:
    store = await opened()
    stream = await made(store, "s", STREAM)
    await publish(stream, b"1", b"2")
    batch = Batch()
    batch.put(Table.META, META_RESTORED, b"\0" * 8)
    engine = engine_of(store).crash()
    engine.commit(batch, lambda: None)
    restored = await opened(engine)
    assert restored.queue("default", "s").parts.all[0].epoch == 2
    again = await opened(engine_of(restored).crash())
    stream = again.queue("default", "s")
    [part] = stream.parts.all
    assert part.epoch == 2
    await publish(stream, b"3")
    chunk = part.read(part.start("earliest").offset)
    assert chunk is not None and chunk.epoch == 1


async def test_a_receipt_from_after_the_backup_acks_nothing_in_a_queue_made_after_the_restore(opened: Open) -> None:
    """Both queues would be the first one made after the backup, and their first messages lie at the same place."""
    store = await opened()
    backup = engine_of(store).crash()
    store = await opened(backup)
    image = copy_of(backup)
    queue = await made(store)
    await publish(queue, b"lost with the disk")
    receipt = next(iter(receipts_by_seq(leased(queue)).values()))
    batch = Batch()
    batch.put(Table.META, META_RESTORED, b"\0" * 8)
    image.commit(batch, lambda: None)
    queue = await made(await opened(image))
    await publish(queue, b"new")
    assert await ack(queue, receipt) == [False]
    assert queue.stats().ready == 1


@pytest.mark.parametrize("has_first", [False, True])
async def test_a_receipt_of_a_lost_end_acks_nothing_that_stands_in_its_place(opened: Open, has_first: bool) -> None:
    """Two leaders go on from the same log, one after the other, and the second one lacks what the first one wrote."""
    store = await opened(epoch=4)
    queue = await made(store)
    if has_first:
        await publish(queue, b"first")
    image = copy_of(engine_of(store))
    first = await opened(copy_of(image), epoch=5)
    queue = first.queue("default", "q")
    await publish(queue, b"lost")
    *early, lost = [receipt for _ in range(1 + has_first) for receipt in receipts_by_seq(leased(queue)).values()]
    second = await opened(image, epoch=6)
    queue = second.queue("default", "q")
    await publish(queue, b"in its place")
    assert await ack(queue, lost) == [False]
    assert queue.stats().ready == 1 + has_first
    for receipt in early:
        assert await ack(queue, receipt) == [True], "that one is the same message"


async def test_a_cursor_of_a_lost_end_is_told_to_begin_anew_and_one_from_before_goes_on(opened: Open) -> None:
    store = await opened(epoch=4)
    await publish(await made(store, "s", STREAM), b"0", b"1")
    image = copy_of(engine_of(store))
    first = await opened(copy_of(image), epoch=5)
    [part] = first.queue("default", "s").parts.all
    await publish(first.queue("default", "s"), b"lost")
    second = await opened(image, epoch=6)
    stream = second.queue("default", "s")
    await publish(stream, b"in its place")
    uid = stream.definition.uid
    third = await opened(engine_of(second).crash(), epoch=7)
    [part] = third.queue("default", "s").parts.all

    def begins(epoch: int, offset: int) -> tuple[int, str]:
        found = part.start({"cursor": encode_cursor(epoch, offset, uid=uid)})
        return found.offset, found.outcome

    assert begins(5, 3) == (0, "reset")
    for epoch, offset in ((4, 1), (4, 2), (6, 2), (6, 3), (7, 3)):
        assert begins(epoch, offset) == (offset, "complete")


async def test_a_cursor_of_a_leader_to_whom_nothing_was_published_goes_on_under_the_next_one(opened: Open) -> None:
    store = await opened(epoch=1)
    stream = await made(store, "s", STREAM)
    await publish(stream, b"0")
    for epoch in range(2, EPOCHS_MAX + 2):
        store = await opened(engine_of(store).crash(), epoch=epoch)
    [part] = store.queue("default", "s").parts.all
    for epoch in (2, EPOCHS_MAX // 2, EPOCHS_MAX + 1):
        found = part.start({"cursor": encode_cursor(epoch, 1, uid=stream.definition.uid)})
        assert (found.offset, found.outcome) == (1, "complete")
    found = part.start({"cursor": encode_cursor(1, 1, uid=stream.definition.uid)})
    assert (found.offset, found.outcome) == (0, "reset"), "that was too long ago to tell"


async def test_broken_entries_are_put_aside_after_an_unclean_end(opened: Open) -> None:
    store = await opened()
    queue = await made(store)
    for number in range(3):
        await publish(queue, b"%d" % number, b"x")
    engine = engine_of(store).crash()
    key = log_key(queue.definition.uid, 2)
    data = engine.get(Table.LOG, key)
    assert data is not None
    batch = Batch()
    batch.put(Table.LOG, key, data[:-1] + b"?")
    engine.commit(batch, lambda: None)
    again = await opened(engine)
    queue = again.queue("default", "q")
    assert again.node.quarantined == 1
    assert list(all_rows(engine, Table.QUARANTINE)) == [key]
    await eventually(lambda: queue.stats().ready == 4)
    assert [list(receipts_by_seq(leased(queue, 2))) for _ in range(2)] == [[0, 1], [4, 5]]


async def test_a_broken_entry_is_counted_once_however_often_it_is_read(opened: Open) -> None:
    """Its row is there until the next commit, and a search by time comes by many times before that."""
    store = await opened()
    queue = await made(store, config=STREAM)
    for _ in range(8):
        await publish(queue, b"x", b"y")
    engine, key = engine_of(store), log_key(queue.definition.uid, 6)
    data = engine.get(Table.LOG, key)
    assert data is not None
    batch = Batch()
    batch.put(Table.LOG, key, data[:-1] + b"?")
    engine.commit(batch, lambda: None)
    [part] = queue.parts.all
    for _ in range(3):
        part.start({"time": store.node.clock_ms() + 1000})
        part.read(6)
    assert store.node.quarantined == 1
    await eventually(lambda: queue.stats().ready == 14)
    await publish(queue, b"z")
    assert queue.stats().ready == 15


async def test_receipts_are_good_over_restarts(opened: Open) -> None:
    store = await opened()
    queue = await made(store)
    await publish(queue, b"1", b"2")
    first, second = receipts_by_seq(leased(queue)).values()
    again = await opened(engine_of(store).crash())
    assert await ack(again.queue("default", "q"), first) == [True]
    third = await opened(engine_of(again).crash())
    assert await ack(third.queue("default", "q"), second) == [True]
