"""Peek shows messages as they lie and leaves no trace."""

from __future__ import annotations

import asyncio

import pytest

from backend_store.client import peek as peeking
from backend_store.client.filters import PeekFilter
from backend_store.client.peek import look
from backend_store.core.chunk import KIND_JSON, Draft
from backend_store.model import InvalidRequest, PeekPage
from tests.support.world import World, queue_of, receipts_by_seq


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


@pytest.mark.anyio
async def test_others_get_their_turn_while_a_long_page_is_looked_for() -> None:
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
    assert turns >= 10
