"""Numbers of queues for scrapes: those of few by name, all others added up, and no look at what nothing happened to."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from typing import Any, cast

import pytest

from backend_store.client import Queue, Store, put_group
from backend_store.core.log.chunk import KIND_JSON, Draft
from backend_store.metadata.queue_rows import QueueRows
from backend_store.model import COMPANION, QueueConfig
from gateway.app import create_app
from gateway.config.settings import Settings
from gateway.observability import queue_numbers
from gateway.observability.queue_numbers import OTHER, Collected, QueueNumbers
from tests.support.far_queues import FarQueues
from tests.support.stores import asked, died, drained, made, opened, published
from tests.support.world import Consumer
from tests.unit.gateway.conftest import Clock

pytestmark = pytest.mark.anyio

MESSAGE = Draft(KIND_JSON, b"1", {})


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(queue_numbers, "QUEUES_LABELLED_MAX", 3)
    monkeypatch.setattr(queue_numbers, "GROUPS_LABELLED_MAX", 2)
    return 3


async def queues(store: Store, tenant: str, *names: str) -> None:
    if store.tenant(tenant) is None:
        await store.node.metadata.put_tenant(tenant, 0)
    for name in names:
        await store.create_queue(tenant, name, QueueConfig())


async def grouped(stream: Queue, *groups: str) -> None:
    for group in groups:
        await asked(partial(put_group, stream, group, "earliest", None))


async def test_one_tenants_names_push_out_no_others(store: Store, few: int) -> None:
    await queues(store, "aaa", *(f"q{number}" for number in range(9)))
    await queues(store, "zzz", "a", "b")
    await published(store.queue("aaa", "q7"), MESSAGE, MESSAGE)
    collected = await QueueNumbers(store).collect()
    assert collected.stats.keys() == {("aaa", "q0"), ("aaa", "q1"), ("zzz", "a"), ("aaa", OTHER), ("zzz", OTHER)}
    assert collected.stats["aaa", OTHER].ready == 2


async def test_after_one_scrape_without_another_what_happens_is_not_gathered(
    store: Store, clock: Clock, few: int
) -> None:
    """Deleted queues would be held in memory until the next one, which may never come."""
    gateway = create_app(store, Settings(), clock_ms=clock).gateway
    await queues(store, "default", "a", "b", "c", "d", "e")
    await gateway.numbers.collect()
    gathered = store.node.touched._ears[-1]
    await published(store.queue("default", "d"), MESSAGE)
    await store.delete_queue("default", "d")
    await published(store.queue("default", "e"), MESSAGE)
    assert gathered
    await gateway.sampler.look()
    assert not gathered
    collected = await gateway.numbers.collect()
    assert collected.stats.keys() == {("default", name) for name in ("a", "b", "c", OTHER)}
    assert collected.stats["default", OTHER].ready == 1
    await gateway.hub.close()


async def test_a_scrape_looks_at_what_it_names_and_at_what_something_happened_to(
    store: Store, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each sorted all names, 50 ms of 100,000, and looked at every queue."""
    await queues(store, "default", *(f"q{number:02}" for number in range(30)))
    numbers = QueueNumbers(store)
    await numbers.collect()
    for look in ("__iter__", "keys", "values", "items"):
        monkeypatch.setattr(QueueRows, look, None)
    before = numbers.looked_at
    await numbers.collect()
    assert numbers.looked_at - before == few
    await published(store.queue("default", "q20"), MESSAGE, MESSAGE)
    await store.delete_queue("default", "q10")
    await queues(store, "default", "zz")
    before = numbers.looked_at
    collected = await numbers.collect()
    assert numbers.looked_at - before == few + 2
    assert collected.stats["default", OTHER].ready == collected.stats["default", OTHER].published_total == 2
    await drained(store.queue("default", "q20"))
    assert (await numbers.collect()).stats["default", OTHER].ready == 0


async def test_what_is_added_up_bit_by_bit_is_what_all_of_them_hold(store: Store, few: int) -> None:
    choose, numbers = random.Random(11), QueueNumbers(store)
    await queues(store, "other", "b", "c")
    there = [("other", "b"), ("other", "c")]
    for number in range(80):
        tenant, name = choose.choice(there)
        queue = store.queue(tenant, name)
        match choose.randrange(8):
            case 0 | 1:
                await published(queue, *[MESSAGE] * choose.randrange(1, 5))
            case 2 if queue.config.kind == "work":
                queue.take(2, Consumer(), 30_000)
            case 3 if queue.config.kind == "work":
                await drained(queue)
            case 4 if len(there) > 3:
                await store.delete_queue(tenant, name)
                there.remove((tenant, name))
            case 5:
                there.append((choose.choice(["default", "other"]), f"q{number}"))
                await store.create_queue(*there[-1], QueueConfig(partitions=choose.choice([1, 3])))
            case 6:
                there.append(("default", f"dies{number}"))
                config = QueueConfig(max_attempts=1, dead_letter_queue=COMPANION)
                await died((await store.create_queue(*there[-1], config))[0], MESSAGE)
            case 7:
                there.append(("default", f"events{number}"))
                config = QueueConfig(kind="stream", max_messages=2, overflow="drop_oldest")
                stream, _ = await store.create_queue(*there[-1], config)
                await published(stream, *[MESSAGE] * 4)
                await grouped(stream, "g", "h")
        if choose.random() < 0.4:
            found, expected = await numbers.collect(), await QueueNumbers(store).collect()
            assert _without_ages(found) == _without_ages(expected)
            for name, stats in expected.stats.items():
                assert abs(found.stats[name].oldest_age_ms - stats.oldest_age_ms) < 100
                assert bool(found.stats[name].oldest_age_ms) == bool(stats.oldest_age_ms)
    assert found.lags and found.ended and found.partitions and found.moving


def _without_ages(collected: Collected) -> Collected:
    return replace(collected, stats={name: replace(one, oldest_age_ms=0) for name, one in collected.stats.items()})


async def test_the_oldest_message_of_the_others_is_none_of_a_queue_that_is_named(store: Store, few: int) -> None:
    await queues(store, "default", "a", "b", "c", "d", "e")
    numbers, first = QueueNumbers(store), store.node.steady_ms
    now = [first()]
    store.node.steady_ms = lambda: now[0]  # type: ignore[method-assign]
    for name in ("a", "d", "e"):
        await published(store.queue("default", name), MESSAGE)
        now[0] += 10_000
    for _ in range(2):
        collected = await numbers.collect()
        assert [collected.stats["default", name].oldest_age_ms for name in ("a", OTHER)] == [30_000, 20_000]
    await drained(store.queue("default", "d"))
    assert (await numbers.collect()).stats["default", OTHER].oldest_age_ms == 10_000
    store.node.steady_ms = first  # type: ignore[method-assign]


async def test_queues_elsewhere_are_asked_for_together(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each scrape asked for each queue alone, one after the other."""
    backend = await opened()
    names = [(await made(backend, f"q{number:02}")).name for number in range(30)]
    world = FarQueues(backend, monkeypatch)
    world.define(*names)
    monkeypatch.setattr(queue_numbers, "QUEUES_PER_TURN", 10)
    monkeypatch.setattr("backend_store.remote.queues.looks.LOOK_FRESH_MS", 60_000)
    numbers = QueueNumbers(cast(Any, world.gateway))
    await numbers.collect()
    before = world.asks
    await numbers.collect()
    assert world.asks - before == 2, "what changed, and those with a name"
    await published(backend.here("default", "q20"), MESSAGE, MESSAGE)
    before = world.asks
    collected = await numbers.collect()
    assert world.asks - before == 2 and collected.stats["default", OTHER].ready == 2
    world.is_away = True
    again = QueueNumbers(cast(Any, world.gateway))
    world.gateway.forget_looks()
    with pytest.raises(Exception, match="queue"):
        await again.collect()
    world.is_away = False
    assert (await again.collect()).stats["default", OTHER].ready == 2
    await world.close()
