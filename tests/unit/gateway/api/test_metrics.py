"""Metrics: a bounded number of series, whatever the number of queues."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client.parser import text_string_to_metric_families

from backend_store.client import KIND_JSON, Queue, Store, plain_blocks, put_group
from backend_store.core.log.chunk import Draft
from backend_store.model import COMPANION, QueueConfig
from gateway.admission.loop_lag import LoopLag
from gateway.app import create_app
from gateway.config.settings import Settings
from gateway.listener.proxy_gate import Entrance
from gateway.observability import queue_numbers
from gateway.observability.metrics import alerts, gateway
from tests.support.stores import died
from tests.unit.gateway.conftest import Clock

pytestmark = pytest.mark.anyio

MESSAGE = Draft(KIND_JSON, b"1", {})


async def scrape(store: Store, clock: Clock) -> dict[tuple[str, str], float]:
    """(sample, queue) → value."""
    app = create_app(store, Settings(), clock_ms=clock)
    try:
        answers = Counter({("GET", "", 404): 2})
        answer = await gateway.page(answers, LoopLag(), Entrance(), app.overload)(app.gateway, "")
    finally:
        await app.gateway.hub.close()
    families = text_string_to_metric_families(answer.body.decode())
    return {(s.name, s.labels.get("queue", s.labels.get("path", ""))): s.value for f in families for s in f.samples}


async def test_names_are_ours_with_base_units(store: Store, clock: Clock) -> None:
    await store.create_queue("default", "orders", QueueConfig())
    samples = {name for name, _ in await scrape(store, clock)}
    assert all(name.startswith(("pushq_", "process_")) for name in samples)
    assert not [name for name in samples if name.endswith(("_ms", "_millis"))]
    assert {
        "pushq_messages_published_total", "pushq_messages_delivered_total", "pushq_messages_acked_total",
        "pushq_queue_ready_messages", "pushq_queue_oldest_age_seconds", "pushq_connections",
        "pushq_commit_seconds_bucket", "pushq_loop_lag_seconds", "pushq_build_info", "pushq_http_requests_total",
    } <= samples  # fmt: skip


async def test_queues_above_the_cap_share_one_series(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_numbers, "QUEUES_LABELLED_MAX", 2)
    for name in ("a", "b", "c", "d"):
        await store.create_queue("default", name, QueueConfig())
    samples = await scrape(store, clock)
    assert sorted(queue for name, queue in samples if name == "pushq_queue_ready_messages") == ["a", "b", "other"]


async def test_the_lag_of_groups_has_a_bounded_number_of_series(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_numbers, "GROUPS_LABELLED_MAX", 2)
    stream, _ = await store.create_queue("default", "events", QueueConfig(kind="stream"))
    await published(stream, b"1", b"2", b"3")
    for name in ("a", "b", "c", "d"):
        await made_group(stream, name)
    samples = await scrape(store, clock)
    lags = {queue: value for (name, queue), value in samples.items() if name == "pushq_group_lag_messages"}
    assert lags == {"events": 3, "other": 6}


async def test_messages_that_ended_are_counted_by_reason(store: Store, clock: Clock) -> None:
    config = QueueConfig(kind="stream", max_messages=2, overflow="drop_oldest")
    stream, _ = await store.create_queue("default", "events", config)
    await published(stream, *[b"1"] * 5)
    samples = await scrape(store, clock)
    assert samples["pushq_messages_ended_total", "events"] == 3


async def test_partitions_and_slots_on_the_move_are_told_of_queues_that_have_several(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_numbers, "QUEUES_LABELLED_MAX", 2)
    for number, name in enumerate(("a", "b", "c", "d", "e")):
        await store.create_queue("default", name, QueueConfig(partitions=number + 1))
    samples = await scrape(store, clock)
    counts = {queue: value for (name, queue), value in samples.items() if name == "pushq_queue_partitions"}
    assert counts == {"b": 2, "other": 3 + 4 + 5}  # one partition for good is nothing to tell of
    moving = {queue: value for (name, queue), value in samples.items() if name == "pushq_queue_slots_moving"}
    assert moving == {"b": 0, "other": 0}
    await store.update_queue("default", "b", QueueConfig(partitions=4), version=1)
    for _ in range(200):
        samples = await scrape(store, clock)
        moving_now = samples["pushq_queue_slots_moving", "b"]
        if samples["pushq_queue_partitions", "b"] == 4 and not moving_now:
            break
        await asyncio.sleep(0.01)
    assert samples["pushq_queue_partitions", "b"] == 4 and not moving_now


async def published(queue: Queue, *bodies: bytes) -> None:
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    queue.publish(plain_blocks(KIND_JSON, list(bodies)), done.set_result)
    await done


async def made_group(stream: Queue, name: str) -> None:
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    put_group(stream, name, "earliest", None, done.set_result)
    await done


async def test_a_queue_that_was_deleted_meanwhile_is_left_out(store: Store) -> None:
    gone = SimpleNamespace(name="gone")
    metadata = SimpleNamespace(of_tenant=lambda tenant: [gone])
    names = SimpleNamespace(names=lambda tenant: [("default", "gone")], here=store.here, metadata=metadata)
    assert await queue_numbers.of_queues(cast(Any, names), "default") == queue_numbers.Collected()


async def test_unknown_paths_are_counted_together(store: Store, clock: Clock) -> None:
    assert (await scrape(store, clock))["pushq_http_requests_total", "other"] == 2


async def test_redeliveries_of_queues_without_a_series_of_their_own_are_added_up(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All names were sorted, and all pulses added up, with each scrape."""
    monkeypatch.setattr(alerts, "QUEUES_LABELLED_MAX", 2)
    await store.node.metadata.put_tenant("zzz", 0)
    app = create_app(store, Settings(), clock_ms=clock)
    sampler = app.gateway.sampler

    async def redelivered(tenant: str | None = None) -> dict[tuple[str, str], float]:
        clock.ms += 5_000
        await sampler.look()
        family = alerts._redelivered(app.gateway, tenant)
        return {(s.labels["tenant"], s.labels["queue"]): s.value for s in family.samples if s.name.endswith("_total")}

    config = QueueConfig(max_attempts=2, dead_letter_queue=COMPANION)
    for tenant, name in (("default", "a"), ("default", "b"), ("default", "c"), ("zzz", "a"), ("zzz", "b")):
        await died((await store.create_queue(tenant, name, config))[0], *[MESSAGE] * ord(name[0]))
    first = {("default", "a"): 97, ("default", "other"): 98 + 99, ("zzz", "a"): 97, ("zzz", "other"): 98}
    assert await redelivered() == first
    assert await redelivered("default") == {("default", "a"): 97, ("default", "b"): 98, ("default", "other"): 99}
    await died(store.queue("default", "c"), MESSAGE)
    await store.delete_queue("default", "b")
    await store.delete_queue("zzz", "b")
    assert await redelivered() == {("default", "a"): 97, ("default", "other"): 100, ("zzz", "a"): 97}
    await store.delete_queue("default", "a")
    await store.create_queue("default", "a", config)
    assert await redelivered() == {("default", "a"): 0, ("default", "other"): 100, ("zzz", "a"): 97}
    await store.delete_queue("zzz", "a")
    assert await redelivered() == {("default", "a"): 0, ("default", "c"): 100}
    assert "zzz" not in sampler.book.redelivered, "it may be deleted"
    await app.gateway.hub.close()
