"""What is asked of a few queues costs no look at all of them, however many there are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from backend_store.client.dead_letters import LetterFilter
from backend_store.client.embedded import EmbeddedStore
from backend_store.metadata.local import LocalMetadata
from backend_store.metadata.recent import Rows
from backend_store.model import Conflict, QueueConfig
from backend_store.service.defining import DropQueues, GoneQueues
from backend_store.service.operations import perform
from backend_store.service.pulses import PULSES_PER_ASK_MAX, TakePulses
from backend_store.service.relocating import _others
from tests.support.stores import made, opened

pytestmark = pytest.mark.anyio

QUEUES = 20


@pytest.fixture
async def store(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[EmbeddedStore]:
    store = await opened()
    await store.node.metadata.put_tenant("few", 0)
    for number in range(QUEUES):
        await made(store, f"q{number}")
    for name in "ab":
        await store.create_queue("few", name, QueueConfig())
    with monkeypatch.context() as patched:
        for look in ("__iter__", "keys", "values", "items"):
            patched.setattr(Rows, look, _refused)
        yield store
    await store.close()


def _refused(rows: Any) -> Any:
    raise AssertionError("all rows were looked at")


async def test_a_page_of_pulses(store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """For 100,000 queues that was 200 looks at all of them, every other second, for each gateway with series."""
    monkeypatch.setattr("backend_store.service.pulses.PULSES_PER_ASK_MAX", 8)
    assert PULSES_PER_ASK_MAX > 8
    found: list[int] = []
    while page := await perform(store, TakePulses(found[-1] if found else 0)):
        assert len(page) <= 8
        found += [uid for uid, _ in page]
    assert len(found) == QUEUES + 2 and found == sorted(found)


async def test_queues_that_are_dropped_or_may_be_gone(store: EmbeddedStore) -> None:
    uid = store.here("default", "q3").uid
    assert await perform(store, GoneQueues([uid, 10_000])) == [10_000]
    await perform(store, DropQueues([uid, 10_000]))
    assert ("default", "q3") not in store.node.metadata.queues
    assert await perform(store, GoneQueues([uid])) == [uid]


async def test_one_tenants_queues(store: EmbeddedStore) -> None:
    assert list(store.names("few")) == [("few", "a"), ("few", "b")]
    listed = await LocalMetadata(store.node.metadata, lambda: 0).list_queues("few")
    assert [one.name for one in listed] == ["a", "b"]
    with pytest.raises(Conflict, match="2 queues, including 'a'"):
        await store.node.metadata.delete_tenant("few")


async def test_what_one_queue_has_to_do_with_the_others_of_its_tenant(store: EmbeddedStore) -> None:
    queue = store.here("few", "a")
    assert [one.name for one in _others(store, queue.definition)] == ["b"]
    assert queue.dead_letters(LetterFilter(), None, own=True).views
