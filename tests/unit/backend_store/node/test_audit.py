"""The store of the audit: numbered rows that stay until they are in a file, and the newest of them longer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from backend_store.client.embedded import EmbeddedStore
from backend_store.model import StorageFull
from backend_store.storage.engine import Batch
from tests.support.stores import opened, reopened

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store() -> AsyncIterator[EmbeddedStore]:
    store = await opened()
    yield store
    if not store.node.is_closing:
        await store.close()


async def done(store: EmbeddedStore, *rows: bytes) -> None:
    for data in rows:
        await store.audit.put(store.audit.begin(), data, has_ended=True)


async def test_the_newest_act_comes_first(store: EmbeddedStore) -> None:
    await done(store, b"a", b"b", b"c")
    assert [entry.data for entry in store.audit.before(None, 2)] == [b"c", b"b"]
    assert [entry.data for entry in store.audit.before(2, 10)] == [b"a"]


async def test_no_file_takes_an_act_that_goes_on(store: EmbeddedStore) -> None:
    await done(store, b"a")
    seq = store.audit.begin()
    await store.audit.put(seq, b"begun", has_ended=False)
    await done(store, b"c")
    assert [entry.data for entry in store.audit.waiting()] == [b"a"]
    await store.audit.put(seq, b"ended", has_ended=True)
    assert [entry.data for entry in store.audit.waiting()] == [b"a", b"ended", b"c"]


async def test_an_act_that_a_crash_cut_off_is_taken_as_it_was(store: EmbeddedStore) -> None:
    await store.audit.put(store.audit.begin(), b"begun", has_ended=False)
    again = await reopened(store)
    assert [entry.data for entry in again.audit.waiting()] == [b"begun"]
    assert again.audit.begin() == 2, "its number is not used again"
    await again.close()


async def test_what_is_in_a_file_is_not_taken_again_and_the_newest_can_still_be_listed(store: EmbeddedStore) -> None:
    await done(store, b"a", b"b", b"c", b"d")
    await store.audit.taken(3, kept=2)
    assert [entry.data for entry in store.audit.waiting()] == [b"d"]
    assert [entry.data for entry in store.audit.before(None, 10)] == [b"d", b"c", b"b", b"a"]
    await store.audit.taken(4, kept=2)
    assert [entry.data for entry in store.audit.before(None, 10)] == [b"d", b"c", b"b"]


def fail_once(store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    written: Callable[[Batch], object] = store.audit._write

    async def write(batch: Batch) -> None:
        monkeypatch.setattr(store.audit, "_write", written)
        raise error

    monkeypatch.setattr(store.audit, "_write", write)


@pytest.mark.parametrize("error", [StorageFull("the disk is full"), asyncio.CancelledError()])
async def test_an_act_that_cannot_be_written_down_holds_up_no_other(
    store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    fail_once(store, monkeypatch, error)
    with pytest.raises(type(error)):
        await store.audit.put(store.audit.begin(), b"not begun", has_ended=False)
    await done(store, b"b")
    seq = store.audit.begin()
    await store.audit.put(seq, b"c", has_ended=False)
    fail_once(store, monkeypatch, error)
    with pytest.raises(type(error)):
        await store.audit.put(seq, b"c ended", has_ended=True)
    seq = store.audit.begin()
    await store.audit.put(seq, b"d", has_ended=False)
    fail_once(store, monkeypatch, error)
    with pytest.raises(type(error)):
        await store.audit.forget(seq)
    await done(store, b"e")
    assert [entry.data for entry in store.audit.waiting()] == [b"b", b"c", b"d", b"e"]


async def test_nothing_is_left_of_what_was_not_done(store: EmbeddedStore) -> None:
    seq = store.audit.begin()
    await store.audit.put(seq, b"begun", has_ended=False)
    await store.audit.forget(seq)
    assert not store.audit.before(None, 10) and not store.audit.waiting()


async def test_numbers_go_on_when_all_rows_have_gone(store: EmbeddedStore) -> None:
    await done(store, b"a", b"b")
    await store.audit.taken(2, kept=0)
    again = await reopened(store)
    assert again.audit.begin() == 3
    await again.close()


async def test_the_next_process_waits_for_the_ends_of_acts_that_began_with_the_last(store: EmbeddedStore) -> None:
    assert not store.audit.hold()
    await store.audit.put(store.audit.begin(), b"begun", has_ended=False)
    again = await reopened(store)
    assert again.audit.hold() and not again.audit.waiting()
    await again.audit.put(1, b"ended", has_ended=True)
    again.audit.release()
    assert [entry.data for entry in again.audit.waiting()] == [b"ended"]
    await again.close()
