"""A node's ledger: rows wait in the store, leave it once, and the day's totals have them from then on."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from backend_store.client.embedded import EmbeddedStore
from backend_store.core.ledger import DAY_MS, KINDS
from backend_store.node.ledger import QueueTotal, together
from backend_store.node.node import Node
from backend_store.storage.memory import MemoryEngine
from tests.support.patience import eventually
from tests.support.queues import draft
from tests.support.stores import died, drained, made, opened, published, reopened

pytestmark = pytest.mark.anyio


class Clock:
    now_ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def store() -> AsyncIterator[EmbeddedStore]:
    store = await opened()
    yield store
    if not store.node.is_closing:
        await store.close()


async def totals(store: EmbeddedStore) -> dict[str, Counter[str]]:
    today = store.node.clock_ms() // DAY_MS
    found = await store.ledger.totals(first_day=today, last_day=today)
    return {total.queue: Counter(total.counts) for total in found}


async def crashed(store: EmbeddedStore) -> EmbeddedStore:
    """The store after a crash; the old one has nothing to say any more."""
    engine = store.node.engine
    assert isinstance(engine, MemoryEngine)
    left = engine.crash()
    store.node.is_closing = True
    for task in store.node._tasks:
        task.cancel()
    await store.node.writer.close()
    return await opened(left)


def counts(store: EmbeddedStore) -> Counter[str]:
    """All that waits for a file, by kind."""
    return sum((Counter(one.row.counts) for one in store.ledger.waiting(1000)), Counter())


async def test_only_partitions_that_something_was_committed_in_are_asked_for_rows(store: EmbeddedStore) -> None:
    asked: list[str] = []
    for number in range(20):
        queue = await made(store, f"q{number}")
        await published(queue, draft("1"))
    for partition in store.node.queues.partitions.values():
        partition.cut = lambda name=partition.label, cut=partition.cut: (asked.append(name), cut())[1]  # type: ignore[method-assign,misc]
    await store.ledger.cut()
    await store.ledger.cut()
    assert len(asked) == 40 and len(store.ledger.waiting()) == 20  # the rows were commits, too
    for _ in range(10):
        await store.ledger.cut()
    assert len(asked) == 40
    await published(queue, draft("2"))
    await store.ledger.cut()
    assert asked[40:] == ["q19"] and len(store.ledger.waiting()) == 21


async def test_rows_of_a_partition_follow_each_other_without_a_hole(store: EmbeddedStore) -> None:
    queue = await made(store, "q")
    for _ in range(3):
        await published(queue, draft("1"), draft("2"))
        await store.ledger.cut()
    rows = [one.row for one in store.ledger.waiting()]
    assert [row.start for row in rows] == [0, *(row.end for row in rows[:-1])]
    assert [row.held for row in rows] == [2, 4, 6]


async def test_what_happens_to_messages_is_told_by_what_it_was(store: EmbeddedStore) -> None:
    queue = await made(store, "q", max_attempts=1)
    await died(queue, *[draft("1")] * 3)
    await published(queue, *[draft("2")] * 4)
    assert len(await drained(queue)) == 4
    await published(queue, *[draft("3")] * 2)
    await queue.purge("p")
    await store.ledger.cut()
    found = counts(store)
    assert {kind: found[kind] for kind in ("published", "settled", "dead_lettered", "purged")} == {
        "published": 9,
        "settled": 4,
        "dead_lettered": 3,
        "purged": 2,
    }
    assert store.ledger.waiting()[-1].row.held == 3, "dead letters are held"


async def test_a_message_that_moves_was_published_once(store: EmbeddedStore) -> None:
    await made(store, "graves")
    queue = await made(store, "q", max_attempts=1, dead_letter_queue="graves")
    await died(queue, *[draft("1")] * 5)
    await eventually(lambda: store.queue("default", "graves").stats().ready == 5)
    found = await totals(store)
    assert found["q"] == {"published": 5, "published_bytes": found["q"]["published_bytes"], "dead_lettered": 5} | {
        "moved_out": 5
    }
    assert found["graves"]["moved_in"] == 5 and "published" not in found["graves"]


async def test_a_deleted_queue_tells_what_went_with_it(store: EmbeddedStore) -> None:
    queue = await made(store, "q")
    await published(queue, *[draft("1")] * 7)
    await store.delete_queue("default", "q")
    (row,) = [one.row for one in store.ledger.waiting()]
    assert row.counts == {"published": 7, "deleted": 7} and row.held == 0


async def test_a_queue_that_is_moved_leaves_nothing(store: EmbeddedStore) -> None:
    target, queue = await made(store, "b"), await made(store, "a")
    await published(queue, *[draft("1")] * 7)
    await store.move_queue("default", "a", "b")
    await eventually(lambda: target.stats().ready == 7)
    await eventually(lambda: any(one.row.queue == "a" and one.row.held == 0 for one in store.ledger.waiting()))
    assert counts(store)["moved_out"] == 7 and not counts(store)["deleted"]


async def test_a_streams_groups_read_and_the_stream_keeps(store: EmbeddedStore) -> None:
    stream = await made(store, "s", kind="stream")
    await published(stream, *[draft("1")] * 4)
    await store.ledger.cut()
    (row,) = [one.row for one in store.ledger.waiting()]
    assert row.counts == {"published": 4} and row.held == 4


async def test_totals_are_the_same_whether_rows_wait_are_taken_or_are_not_cut_yet(store: EmbeddedStore) -> None:
    queue = await made(store, "q")
    await published(queue, draft("1"), draft("2"))
    pending = await totals(store)
    await store.ledger.cut()
    waiting = await totals(store)
    await store.ledger.taken(store.ledger.waiting(), kept_days=400)
    assert not store.ledger.waiting()
    assert pending == waiting == await totals(store)
    assert pending["q"]["published"] == 2 and pending["q"]["published_bytes"] > 0


async def test_a_crash_before_rows_are_taken_leaves_them_as_they_were(store: EmbeddedStore) -> None:
    queue = await made(store, "q")
    await published(queue, *[draft("1")] * 3)
    await store.ledger.cut()
    before = store.ledger.waiting()
    again = await crashed(store)
    assert again.ledger.waiting() == before and again.ledger.files == 0
    await published(again.queue("default", "q"), draft("4"))
    await again.ledger.cut()
    assert again.ledger.waiting()[: len(before)] == before
    await again.close()


async def test_what_was_counted_and_not_cut_outlives_a_crash(store: EmbeddedStore) -> None:
    queue = await made(store, "q")
    await published(queue, *[draft("1")] * 3)
    again = await crashed(store)
    assert (await totals(again))["q"]["published"] == 3
    await again.close()


async def test_the_number_of_a_file_is_used_again_until_its_rows_are_taken(store: EmbeddedStore) -> None:
    queue = await made(store, "q")
    await published(queue, draft("1"))
    await store.ledger.cut()
    await store.ledger.taken(store.ledger.waiting(), kept_days=1)
    assert store.ledger.files == 1
    again = await reopened(store)
    assert again.ledger.files == 1
    await again.close()


async def test_a_range_of_days_has_what_was_counted_on_them(clock: Clock) -> None:
    node = Node(MemoryEngine(), directory=None, clock_ms=clock)
    await node.start()
    store = EmbeddedStore(node)
    first = clock.now_ms // DAY_MS
    clock.now_ms = (first + 1) * DAY_MS - 5
    queue = await made(store, "q")

    async def days() -> list[int]:
        ranges = [(first - 1, first - 1), (first, first), (first + 1, first + 1), (first, first + 1), (first + 2,) * 2]
        found = [await store.ledger.totals(first_day=one, last_day=last) for one, last in ranges]
        return [sum(total.counts.get("published", 0) for total in totals) for totals in found]

    await published(queue, draft("1"), draft("2"))
    assert await days() == [0, 2, 0, 2, 0]
    clock.now_ms += DAY_MS  # nothing was committed since, and nothing was cut
    assert await days() == [0, 2, 0, 2, 0]
    await published(queue, draft("3"), draft("4"), draft("5"))
    assert await days() == [0, 2, 3, 5, 0]
    await store.ledger.cut()
    assert await days() == [0, 2, 3, 5, 0]
    assert [one.row.at_ms // DAY_MS for one in store.ledger.waiting()] == [first, first + 1]
    await store.ledger.taken(store.ledger.waiting(), kept_days=400)
    assert await days() == [0, 2, 3, 5, 0]
    await store.close()


async def test_a_deleted_queues_last_day_has_only_what_it_counted(clock: Clock) -> None:
    node = Node(MemoryEngine(), directory=None, clock_ms=clock)
    await node.start()
    store = EmbeddedStore(node)
    await published(await made(store, "q"), draft("1"))
    clock.now_ms += DAY_MS
    await store.delete_queue("default", "q")
    assert [one.row.counts for one in store.ledger.waiting()] == [{"published": 1}, {"deleted": 1}]
    await store.close()


def test_what_lies_in_several_places_is_one_total_in_the_order_of_names() -> None:
    lanes = [
        QueueTotal("t", "b", 2, {"published": 1}),
        QueueTotal("t", "a", 3, {"published": 5}),
        QueueTotal("t", "b", 2, {"published": 2, "settled": 1}),
    ]
    assert together(lanes) == [
        QueueTotal("t", "a", 3, {"published": 5}),
        QueueTotal("t", "b", 2, {"published": 3, "settled": 1}),
    ]


async def test_totals_of_days_that_are_too_old_go(store: EmbeddedStore) -> None:
    queue = await made(store, "q")
    await published(queue, draft("1"))
    await store.ledger.cut()
    await store.ledger.taken(store.ledger.waiting(), kept_days=400)
    store.ledger._clock_ms = lambda: store.node.clock_ms() + 10 * DAY_MS
    await store.ledger.taken([], kept_days=5)
    assert "q" not in await totals(store)


async def test_a_clock_that_is_years_ahead_for_a_moment_costs_no_totals(monkeypatch: pytest.MonkeyPatch) -> None:
    store = EmbeddedStore(Node(MemoryEngine(), directory=None))
    await store.node.start()
    queue = await made(store, "q")
    await published(queue, draft("1"))
    await store.ledger.cut()
    await store.ledger.taken(store.ledger.waiting(), kept_days=400)
    said = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: said + 1_000 * DAY_MS * 1_000_000)
    await store.ledger.taken([], kept_days=400)
    monkeypatch.undo()
    assert (await totals(store))["q"]["published"] == 1
    await store.close()


async def test_every_kind_is_one_that_a_state_can_count(store: EmbeddedStore) -> None:
    queue = await made(store, "q")
    ledger = queue._partition.state.ledger
    assert all(getattr(ledger, kind) == 0 for kind in KINDS)
