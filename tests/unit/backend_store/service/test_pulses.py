"""Gateways are told which queues something happened to, and that is found once for all of them."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from backend_store.client.embedded import EmbeddedStore
from backend_store.client.groups import open_group, put_group
from backend_store.client.pulses import Pulse, Pulses
from backend_store.core.log.chunk import KIND_JSON, Draft
from backend_store.metadata import recent
from backend_store.model import QueueConfig
from backend_store.service import pulses
from backend_store.service.handing import Grant, counter_of
from backend_store.service.operations import perform
from backend_store.service.pulses import AsOf, PulseNews, TakePulses
from backend_store.wire.store_frames import Place
from tests.support.stores import asked, died, drained, made, opened, published
from tests.support.world import Consumer

pytestmark = pytest.mark.anyio

MESSAGE = Draft(KIND_JSON, b"1", {})
QUEUES = 20


class Gateway:
    """What one gateway knows."""

    def __init__(self, store: EmbeddedStore) -> None:
        self.store = store
        self.since = AsOf()
        self.pulses: dict[int, Pulse] = {}
        self.resets = 0

    async def ask(self) -> set[int]:
        """Returns what it was told of."""
        told: set[int] = set()
        while True:
            news: PulseNews = await perform(self.store, TakePulses(since=self.since))
            self.since = news.now
            if news.is_reset:
                self.resets += 1
                self.pulses = await everything(self.store)
            self.pulses.update(news.pulses)
            for uid in news.gone:
                self.pulses.pop(uid, None)
            told.update(news.gone, dict(news.pulses))
            if news.is_last:
                return told


async def everything(store: EmbeddedStore) -> dict[int, Pulse]:
    found: dict[int, Pulse] = {}
    while page := await perform(store, TakePulses(max(found, default=0))):
        found.update(page)
    return found


@pytest.fixture
async def store() -> AsyncIterator[EmbeddedStore]:
    store = await opened()
    for number in range(QUEUES):
        await made(store, f"q{number}")
    yield store
    await store.close()


def uid_of(store: EmbeddedStore, name: str) -> int:
    return store.here("default", name).uid


async def test_what_nothing_happened_to_is_neither_looked_at_nor_told(
    store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """100,000 queues took a backend's processor for a second, every other second, for each gateway."""
    one, other = Gateway(store), Gateway(store)
    await one.ask()
    await other.ask()
    assert len(one.pulses) == QUEUES and (one.resets, other.resets) == (1, 1)
    looks = 0
    take: Callable[[Pulses], Pulse] = Pulses.take

    def counted(self: Pulses) -> Pulse:
        nonlocal looks
        looks += 1
        return take(self)

    monkeypatch.setattr(Pulses, "take", counted)
    assert await one.ask() == await other.ask() == set() and looks == 0
    await published(store.here("default", "q7"), MESSAGE)
    for gateway in (one, other):
        assert await gateway.ask() == {uid_of(store, "q7")}
        assert gateway.pulses[uid_of(store, "q7")].ready == 1
    assert looks == 1, "the second gateway is told what was found for the first"


async def test_what_is_told_is_what_there_is(store: EmbeddedStore) -> None:
    """Whatever happens: messages, leases and their ends, dead letters, queues and groups that come and go."""
    choose = random.Random(7)
    gateway, late = Gateway(store), Gateway(store)
    await gateway.ask()
    names = [f"q{number}" for number in range(QUEUES)]
    for number in range(60):
        name = choose.choice(names)
        queue = store.here("default", name)
        match choose.randrange(7):
            case 0 | 1:
                await published(queue, *[MESSAGE] * choose.randrange(1, 5))
            case 2:
                queue.take(2, Consumer(), 30_000)
            case 3:
                await drained(queue)
            case 4:
                await store.delete_queue("default", name)
                names.remove(name)
            case 5:
                names.append(f"new{number}")
                await made(store, names[-1], partitions=choose.choice([1, 3]))
            case 6:
                config = QueueConfig(max_attempts=1, dead_letter_queue=".dead")
                names.append(f"dies{number}")
                dies, _ = await store.create_queue("default", names[-1], config)
                await died(dies, MESSAGE)
        if choose.random() < 0.5:
            await gateway.ask()
            assert gateway.pulses == await everything(store)
        if choose.random() < 0.1:
            await late.ask()
            assert late.pulses == await everything(store)
    assert (gateway.resets, late.resets) == (1, 1)


async def test_who_waits_for_messages_is_told_without_a_message(store: EmbeddedStore) -> None:
    gateway, queue = Gateway(store), store.here("default", "q3")
    await gateway.ask()
    visitor: Any = SimpleNamespace(name="gateway-1", has_room=True, idle=lambda grant: None)
    grant = Grant(visitor, Place("default", "q3", queue.uid), queue, 30_000)
    grant.granted = 5
    counter_of(queue).enter(grant)
    counter_of(queue).add(grant)
    assert await gateway.ask() == {queue.uid} and gateway.pulses[queue.uid].consumers == 1
    visitor.has_room = False
    counter_of(queue).dispatch()
    assert await gateway.ask() == {queue.uid} and gateway.pulses[queue.uid].consumers == 0
    visitor.has_room = True
    counter_of(queue).add(grant)
    counter_of(queue).leave(grant)
    assert await gateway.ask() == {queue.uid} and gateway.pulses[queue.uid].consumers == 0


async def test_a_stream_with_groups_is_told_of(store: EmbeddedStore) -> None:
    stream = await made(store, "events", kind="stream")
    gateway = Gateway(store)
    await gateway.ask()
    group = await asked(lambda reply: put_group(stream, "g", "earliest", None, reply))
    group = open_group(stream, "g") if group is None else group
    await published(stream, MESSAGE, MESSAGE)
    assert await gateway.ask() == {stream.uid}
    assert gateway.pulses == await everything(store)


async def test_more_than_one_page_is_told_page_by_page(store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulses, "PULSES_PER_ASK_MAX", 4)
    gateway = Gateway(store)
    await gateway.ask()
    for number in range(10):
        await published(store.here("default", f"q{number}"), MESSAGE)
    before = gateway.since
    page = await perform(store, TakePulses(since=before))
    assert len(page.pulses) == 4 and not page.is_last
    await published(store.here("default", "q0"), MESSAGE)
    assert len(await gateway.ask()) == 10
    assert gateway.pulses == await everything(store) and gateway.resets == 1


async def test_who_missed_more_than_is_remembered_asks_for_all(
    store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recent, "ROW_CHANGES_KEPT_MAX", 3)
    gateway, other = Gateway(store), Gateway(store)
    await gateway.ask()
    await other.ask()
    for number in range(12):
        await published(store.here("default", f"q{number}"), MESSAGE)
        await other.ask()
    for number in range(12):
        await made(store, f"more{number}")
    for one in (gateway, other):
        await one.ask()
        assert one.resets == 2 and one.pulses == await everything(store)
    again = EmbeddedStore(store.node)
    gateway.store = again
    await gateway.ask()
    assert gateway.resets == 3, "what another process or leader remembers is none of what this one told"
