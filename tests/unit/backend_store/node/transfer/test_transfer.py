"""Messages on their way to another queue's log: however many they are, and whatever becomes of that queue meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from backend_store.client.dead_letters import LetterFilter
from backend_store.client.embedded import EmbeddedQueue, EmbeddedStore
from backend_store.client.messages import timestamp
from backend_store.client.peek import PeekFilter
from backend_store.core.limits import TAKE_MESSAGES_MAX
from backend_store.core.log.sublogs import VIEW_OUTBOX
from backend_store.node.limits import TRANSFERS_AT_ONCE_MAX
from backend_store.node.transfer import transfer
from tests.support.patience import eventually
from tests.support.queues import draft
from tests.support.stores import died, drained, made, opened, published, reopened

pytestmark = pytest.mark.anyio

AT_ONCE = TRANSFERS_AT_ONCE_MAX * TAKE_MESSAGES_MAX


@pytest.fixture
async def store(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[EmbeddedStore]:
    monkeypatch.setattr(transfer, "TRANSFER_RETRY_SECONDS", 0.01)
    store = await opened()
    yield store
    await store.close()


async def change(store: EmbeddedStore, queue: EmbeddedQueue, **settings: Any) -> None:
    config = msgspec.structs.replace(queue.config, **settings)
    assert await store.update_queue("default", queue.name, config, queue.definition.version) is not None


def in_outbox(queue: EmbeddedQueue) -> int:
    tally = queue._partition.state.views.get(VIEW_OUTBOX)
    return tally.live if tally is not None else 0


async def test_a_deleted_queue_moves_more_messages_than_it_moves_at_once(store: EmbeddedStore) -> None:
    target, queue = await made(store, "b"), await made(store, "a")
    for _ in range(3):
        await published(queue, *[draft("1")] * AT_ONCE)
    await store.move_queue("default", "a", "b")
    await eventually(lambda: target.stats().ready == 3 * AT_ONCE)


async def test_an_outbox_empties_itself_of_more_messages_than_it_moves_at_once(store: EmbeddedStore) -> None:
    queue, graves = await buried(store)
    for _ in range(2):
        await died(queue, *[draft("1")] * AT_ONCE)
    await change(store, graves, max_messages=None)
    await eventually(lambda: graves.stats().ready == 2 * AT_ONCE + 3)
    assert in_outbox(queue) == 0


async def buried(store: EmbeddedStore, **settings: Any) -> tuple[EmbeddedQueue, EmbeddedQueue]:
    """A queue whose two dead letters wait for another queue that is full, and that one."""
    graves = await made(store, "graves", **{"max_messages": 1, **settings})
    await published(graves, draft("in the way"))
    queue = await made(store, "q", dead_letter_queue="graves", max_attempts=1)
    await died(queue, draft("1"), draft("2"))
    return queue, graves


async def test_dead_letters_that_wait_for_a_full_queue_are_seen_and_go_when_it_has_room(store: EmbeddedStore) -> None:
    queue, graves = await buried(store)
    assert (queue.stats().dead, in_outbox(queue)) == (2, 2)
    await change(store, graves, max_messages=None)
    await eventually(lambda: graves.stats().ready == 3)
    assert (queue.stats().dead, in_outbox(queue)) == (0, 0)


async def test_a_fault_with_some_messages_stops_no_transfer_for_good(
    store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each counted as one that is on its way, until there were as many as may be: then nothing was moved any more."""
    monkeypatch.setattr(transfer, "TRANSFERS_AT_ONCE_MAX", 2)
    monkeypatch.setattr(transfer, "TRANSFER_LEASE_MS", 20)
    step_of, faults = transfer.step_of, [0]

    def failing(*args: Any, **options: Any) -> Any:
        faults[0] += 1
        assert faults[0] > 4, "a fault of ours"
        return step_of(*args, **options)

    monkeypatch.setattr(transfer, "step_of", failing)
    graves = await made(store, "graves")
    queue = await made(store, "q", dead_letter_queue="graves", max_attempts=1)
    for body in "abc":
        await died(queue, draft(body))
    await eventually(lambda: graves.stats().ready == 3)
    assert in_outbox(queue) == 0


@pytest.mark.parametrize("named", [".dead", None])
async def test_dead_letters_on_their_way_come_home_when_their_queue_names_no_other_one(
    store: EmbeddedStore, named: str | None
) -> None:
    queue, graves = await buried(store)
    await change(store, queue, dead_letter_queue=named)
    await store.delete_queue("default", "graves")
    companion = store.queue("default", "q.dead")
    await eventually(lambda: companion.stats().ready == 2)
    assert (queue.stats().dead, in_outbox(queue)) == (2, 0) and graves.deleted
    assert sorted(await drained(companion)) == ["1", "2"]


async def test_dead_letters_on_their_way_go_to_the_queue_that_is_named_now(store: EmbeddedStore) -> None:
    queue, graves = await buried(store)
    other = await made(store, "other")
    await change(store, queue, dead_letter_queue="other")
    await eventually(lambda: other.stats().ready == 2)
    assert graves.stats().ready == 1 and in_outbox(queue) == 0


@pytest.mark.parametrize("overflow", ["drop_oldest", "dead_letter_oldest"])
async def test_a_queue_that_makes_room_makes_it_for_dead_letters_of_others(store: EmbeddedStore, overflow: str) -> None:
    graves = await made(store, "graves", max_messages=3, overflow=overflow)
    await published(graves, draft("a"), draft("b"), draft("c"))
    queue = await made(store, "q", dead_letter_queue="graves", max_attempts=1)
    await died(queue, draft("1"), draft("2"))
    await eventually(lambda: graves.stats().published_total == 5)
    assert await drained(graves) == ["c", "1", "2"]
    assert graves.stats().dead == (2 if overflow == "dead_letter_oldest" else 0)


RANKED = [draft("low"), draft("high", priority=4), draft("middle", priority=2)]


async def priorities(queue: EmbeddedQueue) -> list[int]:
    return [item.message["priority"] for item in (await queue.peek(PeekFilter())).items]


@pytest.mark.parametrize(("most", "come"), [(1, ["low", "high", "middle"]), (5, ["high", "middle", "low"])])
async def test_letters_say_the_priority_that_they_had_and_have_it_where_their_queue_has_so_many(
    store: EmbeddedStore, most: int, come: list[str]
) -> None:
    graves = await made(store, "graves", priorities=most)
    queue = await made(store, "q", dead_letter_queue="graves", max_attempts=1, priorities=5)
    for one in RANKED:
        await died(queue, one)
    await eventually(lambda: graves.stats().ready == 3)
    had = {"low": 0, "high": 4, "middle": 2}
    assert await priorities(graves) == [had[body] for body in come]
    assert await drained(graves) == come


async def test_of_a_queue_with_fewer_priorities_the_highest_stands_for_those_above_it(store: EmbeddedStore) -> None:
    graves = await made(store, "graves", priorities=2)
    queue = await made(store, "q", dead_letter_queue="graves", max_attempts=1, priorities=5)
    for one in (draft("low"), draft("high", priority=4), draft("middle", priority=1), draft("higher", priority=3)):
        await died(queue, one)
    await eventually(lambda: graves.stats().ready == 4)
    assert await drained(graves) == ["high", "middle", "higher", "low"]


LIMITS = [{"max_messages": 5}, {"max_bytes": 8_300, "max_message_bytes": 8_300}]
"""For five of eight messages of 1,500 bytes."""
EIGHT = [draft(f"{n}".ljust(1_500, ".")) for n in range(8)]


def numbers(bodies: list[str]) -> list[str]:
    return [body[:1] for body in bodies]


@pytest.mark.parametrize("limits", LIMITS)
async def test_of_a_batch_of_dead_letters_as_many_go_as_there_is_room_for_and_the_others_are_seen(
    store: EmbeddedStore, limits: dict[str, int]
) -> None:
    graves = await made(store, "graves", **limits)
    queue = await made(store, "q", dead_letter_queue="graves", max_attempts=1)
    await died(queue, *EIGHT)
    await eventually(lambda: graves.stats().ready == 5)
    assert (queue.stats().dead, in_outbox(queue)) == (3, 3)
    first = await queue.peek(PeekFilter(state="dead", limit=2))
    rest = await queue.peek(PeekFilter(state="dead", limit=2, cursor=first.next))
    reasons = [item.message["dead_letter"]["reason"] for item in [*first.items, *rest.items]]
    assert reasons == ["max_attempts"] * 3 and rest.next is None
    came = numbers(await drained(graves))
    await eventually(lambda: graves.stats().published_total == 8)
    assert [*came, *numbers(await drained(graves))] == list("01234567") and queue.stats().dead == 0


@pytest.mark.parametrize("limits", LIMITS)
async def test_of_a_deleted_queue_as_many_messages_go_as_there_is_room_for(
    store: EmbeddedStore, limits: dict[str, int]
) -> None:
    target, queue = await made(store, "b", **limits), await made(store, "a")
    await published(queue, *EIGHT)
    await store.move_queue("default", "a", "b")
    await eventually(lambda: target.stats().ready == 5)
    came = numbers(await drained(target))
    await eventually(lambda: target.stats().published_total == 8)
    assert [*came, *numbers(await drained(target))] == list("01234567")


async def test_the_delay_of_a_dead_letter_queue_holds_for_what_others_send_to_it(store: EmbeddedStore) -> None:
    graves = await made(store, "graves", delay_ms=3_600_000)
    queue = await made(store, "q", dead_letter_queue="graves", max_attempts=1)
    await died(queue, draft("1"), draft("2"))
    await eventually(lambda: graves.stats().published_total == 2)
    assert (graves.stats().ready, graves.stats().delayed) == (0, 2)


@pytest.mark.parametrize("settings", [{}, {"delay_ms": 100}])
async def test_the_time_to_live_of_a_dead_letter_queue_holds_for_what_others_send_to_it(
    store: EmbeddedStore, settings: dict[str, Any]
) -> None:
    graves = await made(store, "graves", message_ttl_ms=300, **settings)
    queue = await made(store, "q", dead_letter_queue="graves", max_attempts=1, message_ttl_ms=3_600_000)
    await died(queue, draft("1"), draft("2"))
    await eventually(lambda: graves.stats().ready == 2)
    await eventually(lambda: dict(graves.ended) == {"expired": 2})
    assert graves.stats().ready == 0


async def test_scheduled_messages_of_a_deleted_queue_wait_for_their_time_where_they_go(store: EmbeddedStore) -> None:
    target, queue = await made(store, "b"), await made(store, "a")
    now_ms, hour_ms = store.node.steady_ms(), 3_600_000
    soon = [draft(str(n), due_ms=now_ms + 300 * n, id=str(n)) for n in (1, 2)]
    await published(queue, *soon, draft("now"), *[draft("later", due_ms=now_ms + hour_ms)] * 2)
    await store.move_queue("default", "a", "b")
    await eventually(lambda: target.stats().published_total == 5)
    assert target.stats().delayed >= 2 and (await target.peek(PeekFilter(state="delayed"))).items
    await eventually(lambda: target.stats().ready == 3)
    assert store.node.steady_ms() >= now_ms + 600 and target.stats().delayed == 2
    assert await drained(target) == ["now", "1", "2"]


async def test_the_delay_of_the_queue_that_gets_them_holds_for_what_a_deleted_one_held(store: EmbeddedStore) -> None:
    """What waits for a time of its own keeps that, be it earlier or later."""
    target, queue = await made(store, "b", delay_ms=3_600_000), await made(store, "a")
    now_ms = store.node.steady_ms()
    await published(queue, draft("ready"), draft("soon", due_ms=now_ms + 400), draft("late", due_ms=now_ms + 7_200_000))
    await store.move_queue("default", "a", "b")
    await eventually(lambda: target.stats().published_total == 3)
    await eventually(lambda: target.stats().ready == 1)
    assert store.node.steady_ms() >= now_ms + 400
    items = (await target.peek(PeekFilter(state="delayed"))).items
    dues = {bytes(item.message["body"]): item.message["due_at"] for item in items}
    assert dues[b"late"] == timestamp(now_ms + 7_200_000)
    assert timestamp(now_ms + 3_600_000) <= dues[b"ready"] < timestamp(now_ms + 3_700_000)
    assert await drained(target) == ["soon"]


async def test_the_time_to_live_of_the_queue_that_gets_them_counts_from_when_they_are_due(store: EmbeddedStore) -> None:
    target = await made(store, "b", message_ttl_ms=1_500)
    queue = await made(store, "a", message_ttl_ms=3_600_000)
    now_ms = store.node.steady_ms()
    await published(queue, draft("now"), draft("later", due_ms=now_ms + 3_600_000))
    await store.move_queue("default", "a", "b")
    await eventually(lambda: dict(target.ended) == {"expired": 1})
    assert store.node.steady_ms() >= now_ms + 1_500
    (item,) = (await target.peek(PeekFilter(state="delayed"))).items
    assert item.message["due_at"] == timestamp(now_ms + 3_600_000)
    assert item.message["expires_at"] == timestamp(now_ms + 3_601_500)


@pytest.mark.parametrize("settings", [{"kind": "stream"}, {"sequencing": "clock", "sort_window_ms": 0}])
async def test_where_nothing_waits_for_a_time_scheduled_messages_of_a_deleted_queue_come_at_once(
    store: EmbeddedStore, settings: dict[str, Any]
) -> None:
    target, queue = await made(store, "b", **settings), await made(store, "a")
    await published(queue, draft("later", due_ms=store.node.steady_ms() + 3_600_000))
    await store.move_queue("default", "a", "b")
    await eventually(lambda: target.stats().ready == 1)


async def test_dead_letters_that_wait_for_a_full_queue_can_be_sent_back(
    store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "TRANSFER_RETRY_SECONDS", 3600)  # it has none of them in its hands meanwhile
    queue, graves = await buried(store)
    await eventually(lambda: queue._partition.view(VIEW_OUTBOX).core.in_flight == 0)
    letters = queue.dead_letters(LetterFilter(), None, own=False)
    total = (await queue.count_letters(letters)).total()
    job = queue.redrive("r", letters, total=total, rate_per_s=None, find=lambda name: store.queue("default", name))
    await eventually(lambda: job.state != "running")
    assert (job.state, job.done, total) == ("done", 2, 2)
    assert queue.stats().dead == 0 and await drained(queue) == ["1", "2"] and graves.stats().ready == 1


async def test_a_queue_that_is_full_of_bytes_takes_no_dead_letters(store: EmbeddedStore) -> None:
    queue, graves = await buried(store, max_messages=None, max_bytes=100)
    assert (in_outbox(queue), graves.stats().ready) == (2, 1)
    await drained(graves)
    await change(store, graves, max_bytes=10_000)
    await eventually(lambda: graves.stats().ready == 2)


async def test_a_store_that_closes_does_not_wait_until_all_has_moved() -> None:
    store = await opened()
    target, queue = await made(store, "b"), await made(store, "a")
    for _ in range(3):
        await published(queue, *[draft("1")] * AT_ONCE)
    await store.move_queue("default", "a", "b")
    again = await reopened(store)
    assert target._partition.state.live < 3 * AT_ONCE
    await eventually(lambda: again.queue("default", "b").stats().ready == 3 * AT_ONCE)
    await again.close()
