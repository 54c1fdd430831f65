"""Peek shows messages as they lie and leaves no trace."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from backend_store.client import peek as peeking
from backend_store.client.filters import PeekFilter
from backend_store.client.messages import timestamp
from backend_store.client.peek import look
from backend_store.core.leases.receipts import by_token
from backend_store.core.log.chunk import KIND_JSON, Draft, message_id
from backend_store.core.log.sublogs import VIEW_DEAD
from backend_store.model import InvalidRequest, PeekPage, QueueConfig
from backend_store.node.views import scan_scheduler
from backend_store.storage.engine import Batch, Table
from backend_store.storage.keys import log_range
from tests.support.storage import all_rows
from tests.support.world import REPLICA, World, queue_of, receipts_by_seq


def page(world: World, **wanted: object) -> PeekPage:
    walk = look(world.partition, PeekFilter(**wanted))  # type: ignore[arg-type]
    while True:
        try:
            next(walk)
        except StopIteration as end:
            found: PeekPage = end.value
            return found


def seqs(world: World, **wanted: object) -> list[int]:
    return [item.message["seq"] for item in page(world, **wanted).items]


@pytest.fixture
def world() -> World:
    """0 and 1 in flight, 2 delayed after its first attempt, 3 settled, 4 to 9 never handed out."""
    world = World()
    for number in range(5):
        world.stored(b"%d" % (2 * number), b"%d" % (2 * number + 1))
    world.leased(2)
    third, fourth = receipts_by_seq(world.leased(2)).values()
    world.nack(third, due_ms=world.now_ms + 1000)
    world.ack(fourth)
    return world


def test_each_state_shows_its_messages_in_the_order_of_the_log(world: World) -> None:
    assert seqs(world, state="in_flight") == [0, 1]
    assert seqs(world, state="delayed") == [2]
    assert seqs(world) == [4, 5, 6, 7, 8, 9]


def test_a_page_that_begins_at_the_end_shows_nothing_of_a_commit_that_is_not_taken_in(world: World) -> None:
    world.publish(b"10")
    world.committer.prepare()
    world.committer.reach_the_disk()
    end = world.partition.state.end
    assert seqs(world, from_seq=end) == []
    world.committer.land()
    assert seqs(world, from_seq=end) == [end]


def test_a_message_whose_turn_has_come_is_delayed_until_that_is_on_the_disk_as_the_stats_say() -> None:
    world = World(config=QueueConfig(sequencing="clock", sort_window_ms=300))
    world.stored(b"0", b"1")
    world.pass_time(300)
    assert world.committer.prepare()
    assert (seqs(world, state="delayed"), seqs(world), world.counts) == ([0, 1], [], (0, 0, 2))
    world.committer.land()
    assert (seqs(world, state="delayed"), seqs(world), world.counts) == ([], [0, 1], (2, 0, 0))


def test_the_states_are_the_same_after_a_crash_but_for_what_was_in_flight(world: World) -> None:
    world.crash()
    assert (seqs(world, state="in_flight"), seqs(world, state="delayed")) == ([], [2])
    assert seqs(world) == [0, 1, 4, 5, 6, 7, 8, 9]


def test_attempts_so_far_are_shown(world: World) -> None:
    assert [item.message["attempt"] for item in page(world, state="in_flight").items] == [1, 1]
    assert [item.message["attempt"] for item in page(world).items] == [0] * 6
    world.settle_down()
    world.crash()
    assert [item.message["attempt"] for item in page(world).items] == [1, 1] + [0] * 6


def test_peek_changes_nothing(world: World) -> None:
    before = (world.counts, world.engine.commits, world.partition.next_wakeup_ms())
    for state in ("ready", "in_flight", "delayed"):
        page(world, state=state)
    assert (world.counts, world.engine.commits, world.partition.next_wakeup_ms()) == before
    assert not world.committer.prepare()


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 6, 100])
def test_pages_together_show_everything_once(world: World, limit: int) -> None:
    shown: list[int] = []
    cursor = None
    for _ in range(20):
        found = page(world, limit=limit, cursor=cursor)
        shown += [item.message["seq"] for item in found.items]
        assert len(found.items) <= limit
        if (cursor := found.next) is None:
            break
    assert shown == [4, 5, 6, 7, 8, 9]


def test_a_seq_is_where_the_page_begins(world: World) -> None:
    assert seqs(world, from_seq=7) == [7, 8, 9]
    assert seqs(world, from_seq=0)[0] == 4
    assert seqs(world, from_seq=99) == []


def test_an_id_or_a_key_narrows_the_page() -> None:
    world = World()
    world.publish_drafts([Draft(KIND_JSON, b"1", {"id": f"i{n}", "key": f"k{n % 2}"}) for n in range(6)])
    world.commit()
    assert seqs(world, id="i3") == [3]
    assert seqs(world, key="k1") == [1, 3, 5]
    assert seqs(world, id="i3", key="k0") == []
    found = page(world, id="i5")
    assert found.scanned == 6


def test_a_page_looks_at_no_more_than_its_limit_and_then_says_where_to_go_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peeking, "PEEK_MESSAGES_MAX", 4)
    found = page(world, id="nobody's")
    assert (found.items, found.scanned) == ([], 4)
    assert found.next is not None
    assert seqs(world, cursor=found.next, limit=1) != []


def test_a_wrong_cursor_is_refused(world: World) -> None:
    with pytest.raises(InvalidRequest):
        page(world, cursor="no cursor")


def test_what_was_purged_is_not_shown(world: World) -> None:
    world.purge()
    world.commit()
    assert seqs(world) == []
    world.stored(b"after")
    assert len(seqs(world, from_seq=0)) == 1


def scheduled(world: World, *due_in_ms: int, priority: int = 0) -> None:
    world.publish_drafts(
        [
            Draft(KIND_JSON, b"%d" % due, {"id": f"in-{due}"}, priority=priority, due_ms=world.now_ms + due)
            for due in due_in_ms
        ]
    )
    world.commit()


def test_a_scheduled_message_is_delayed_until_it_is_due() -> None:
    world = World()
    world.stored(b"now")
    scheduled(world, 1000, 2000)
    assert [(i.message["seq"], i.message["due_at"]) for i in page(world, state="delayed").items] == [
        (1, timestamp(world.now_ms + 1000)),
        (2, timestamp(world.now_ms + 2000)),
    ]
    assert seqs(world) == [0]
    world.pass_time(1000)
    assert (seqs(world), seqs(world, state="delayed")) == ([0, 1], [2])
    assert world.counts == (2, 0, 1)
    world.crash()
    assert (seqs(world), seqs(world, state="delayed")) == ([0, 1], [2])


def test_messages_for_later_cost_a_peek_at_what_is_ready_nothing(world: World) -> None:
    scheduled(world, *range(1_000_000, 1_000_300))
    assert page(world).scanned == 9


def test_a_broken_row_of_the_schedule_is_due_as_it_is_for_consumers() -> None:
    world = World()
    scheduled(world, 1000)
    ((key, _),) = world.engine.scan(Table.DUE, *log_range(REPLICA), 10)
    world.engine.commit(_put(Table.DUE, key, b"broken"), lambda: None)
    assert (seqs(world, state="delayed"), seqs(world)) == ([], [])
    world.pass_time(1000)
    assert seqs(world) == [0]


def _put(table: Table, key: bytes, value: bytes) -> Batch:
    batch = Batch()
    batch.put(table, key, value)
    return batch


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 100])
def test_pages_go_on_from_shelf_to_shelf_in_the_order_of_delivery(limit: int) -> None:
    world = World(config=QueueConfig(priorities=3))
    for _ in range(3):
        drafts = [Draft(KIND_JSON, b"1", None, priority=p) for p in range(3)]
        world.publish_drafts(drafts)
        world.commit()
    scheduled(world, 10, 20, priority=1)
    world.pass_time(100)
    shown: list[tuple[int, int]] = []
    cursor = None
    for _ in range(30):
        found = page(world, limit=limit, cursor=cursor)
        shown += [(item.message["priority"], item.message["seq"]) for item in found.items]
        if (cursor := found.next) is None:
            break
    assert cursor is None
    assert [priority for priority, _ in shown] == [2] * 3 + [1] * 5 + [0] * 3
    assert len(set(shown)) == 11


def test_what_was_decided_and_is_not_stored_yet_is_shown_as_decided(world: World) -> None:
    world.main.settle(by_token([*receipts_by_seq(world.leased(1)).values()]), lambda done: None)
    world.committer.prepare()
    assert seqs(world) == [5, 6, 7, 8, 9] and seqs(world, state="in_flight") == [0, 1]
    world.main.settle(by_token([*receipts_by_seq(world.leased(1)).values()]), lambda done: None)
    world.commit()
    assert seqs(world) == [6, 7, 8, 9]


def test_a_message_that_was_given_back_is_in_flight_until_that_is_stored(world: World) -> None:
    (receipt,) = receipts_by_seq(world.leased(1)).values()
    world.main.give_back(by_token([receipt]), 0, None, lambda done: None)
    assert seqs(world, state="in_flight") == [0, 1, 4]
    world.committer.prepare()
    assert seqs(world, state="in_flight") == [0, 1, 4]
    world.commit()
    assert seqs(world)[0] == 4


def test_messages_in_flight_far_back_in_a_long_backlog_are_found_at_once() -> None:
    world = World()
    for number in range(100):
        world.stored(b"%d" % number)
    for _ in range(60):
        world.leased(1)
    found = page(world, state="in_flight", from_seq=59)
    assert [item.message["seq"] for item in found.items] == [59] and found.scanned == 1


def test_a_stream_that_drops_its_oldest_messages_shows_what_it_has_from_the_first() -> None:
    world = World(kind="stream", config=QueueConfig(kind="stream", max_messages=4, overflow="drop_oldest"))
    world.stored(*[b"1"] * 6)
    assert seqs(world) == [2, 3, 4, 5]
    assert seqs(world, id=message_id(0, 1)) == [] and seqs(world, id=message_id(0, 2)) == [2]


def test_holes_are_no_messages() -> None:
    world = World(config=QueueConfig(dedupe="id"))
    drafts = [Draft(KIND_JSON, b"%d" % n, {"id": f"m{n % 2}"}, dedupe=b"%016d" % (n % 2)) for n in range(4)]
    world.publish_drafts(drafts)
    world.commit()
    found = page(world)
    assert [item.message["id"] for item in found.items] == ["m0", "m1"] and found.scanned == 2


def test_no_row_is_written_and_no_chunk_comes_into_memory(world: World) -> None:
    scheduled(world, 1000)
    world.settle_down()
    world.crash()
    rows = {table: all_rows(world.engine, table) for table in Table}
    for state in ("ready", "in_flight", "delayed", "dead"):
        for wanted in ({}, {"id": "in-1000"}, {"id": message_id(0, 7)}, {"since_ms": 1}, {"contains": "5"}):
            page(world, state=state, **wanted)
    assert {table: all_rows(world.engine, table) for table in Table} == rows
    assert not world.committer.prepare()
    in_memory = {state.base for state in world.view.states()}
    assert in_memory <= {2}, "only what was given back with a delay was taken up by the start"
    assert VIEW_DEAD not in world.partition.views


def test_a_peek_does_not_read_what_was_stored_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    for number in range(500):
        world.now_ms += 10
        world.stored(b"%d" % number)
    reads = 0
    real = world.partition.read

    def counted(offset: int, shelf: int = 0) -> Any:
        nonlocal reads
        reads += 1
        return real(offset, shelf)

    monkeypatch.setattr(world.partition, "read", counted)
    assert seqs(world, since_ms=world.now_ms - 20) == [497, 498, 499]
    assert reads < 250, "a bisection of each shelf, not the whole log"


def test_a_page_ends_with_a_cursor_when_its_time_is_up() -> None:
    world = World()
    for number in range(10):
        world.stored(b"%d" % number)
    walk = look(world.partition, PeekFilter(key="nobody's"))
    next(walk)
    with pytest.raises(StopIteration) as end:
        walk.send(True)
    found: PeekPage = end.value.value
    assert found.scanned == 1 and found.next is not None
    assert page(world, cursor=found.next, key="nobody's").scanned == 9


@pytest.mark.anyio
async def test_others_get_their_turn_while_a_long_page_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_scheduler, "LOOK_SLICE_SECONDS", 1e-9)
    world = World()
    for number in range(50):
        world.stored(b"%d" % number)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    await queue_of(world).peek(PeekFilter(id="nobody's"))
    task.cancel()
    assert turns >= 40


def test_a_message_that_came_back_says_how_its_attempts_ended_also_after_a_crash(world: World) -> None:
    for _ in ("in memory", "as it is stored"):
        (item,) = page(world, state="delayed").items
        (ended,) = item.message["history"]
        assert (ended["attempt"], ended["outcome"], ended["reason"]) == (1, "nacked", None)
        world.crash()
    assert all("history" not in item.message for item in page(world).items)
