"""What a gateway is told: each change once, and rows beside the definitions at the cost of what changed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from backend_store.client.embedded import EmbeddedStore
from backend_store.metadata import documents
from backend_store.metadata.data_keys import StoredRotation
from backend_store.metadata.documents import Document
from backend_store.service.definitions import Definitions, Told
from tests.support.stores import made, opened

pytestmark = pytest.mark.anyio

ONE, TWO = Document("rule", "one", b"1"), Document("rule", "two", b"2")


@pytest.fixture
async def store() -> AsyncIterator[EmbeddedStore]:
    store = await opened()
    yield store
    await store.close()


class Untouched(dict[Any, Any]):
    """Nobody looks at what is in it."""

    def __iter__(self) -> Any:
        raise AssertionError("all rows were looked at")

    items = keys = values = __iter__


async def test_a_changed_row_is_told_once_and_whatever_else_there_is_is_not_looked_at(store: EmbeddedStore) -> None:
    await made(store, "orders")
    await store.documents.write([ONE, TWO])
    told = Told()
    first = told.news(store.node)
    assert first is not None and set(first.documents) == {ONE, TWO} and len(first.queues) == 1
    changed = Document("rule", "one", b"3")
    await store.documents.write([changed, Document("rule", "two", None)])
    metadata = store.node.metadata
    metadata.queues, queues = Untouched(), metadata.queues
    store.documents._rows, rows = Untouched(store.documents.rows()), store.documents.rows()
    assert told.rows(store.node) == Definitions(documents=[changed], documents_gone=[("rule", "two")])
    assert told.rows(store.node) is None
    metadata.queues, store.documents._rows = queues, rows
    assert told.news(store.node) is None


async def test_rows_alone_are_not_told_before_everything_was(store: EmbeddedStore) -> None:
    """A gateway takes the first that it hears for all that there is."""
    await store.documents.write([ONE])
    assert Told().rows(store.node) is None


async def test_a_rotation_goes_on_when_rows_alone_are_told(store: EmbeddedStore) -> None:
    rotation = StoredRotation("rot_1", 0, rewraps=True)
    store.node.metadata.data_keys.rotation = rotation
    told = Told()
    assert told.news(store.node).rotation is rotation  # type: ignore[union-attr]
    await store.documents.write([ONE])
    assert told.rows(store.node).rotation is rotation  # type: ignore[union-attr]


async def test_who_missed_more_changes_than_are_remembered_is_told_all_of_them(
    store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "ROW_CHANGES_KEPT_MAX", 3)
    await store.documents.write([ONE, TWO])
    told = Told()
    told.news(store.node)
    await store.documents.write([Document("rule", "two", None)])
    many = [Document("rule", f"{number}", b"") for number in range(5)]
    await store.documents.write(many)
    assert store.documents.changed_since(1) is None, "two of five are forgotten"
    news = told.rows(store.node)
    assert news is not None and set(news.documents) == set(many) and news.documents_gone == [("rule", "two")]
    assert store.documents.changed_since(store.documents.version) == set()


async def test_who_was_told_everything_hears_that_nothing_is_new_without_a_look_at_all_of_it(
    store: EmbeddedStore,
) -> None:
    """It is asked for with each answer of a backend: with many queues every request once cost a look at all of them."""
    queue = await made(store, "one")
    await store.documents.write([ONE])
    told = Told()
    assert told.news(store.node) is not None
    await store.documents.write([TWO])
    metadata = store.node.metadata
    metadata.queues, queues = Untouched(), metadata.queues
    assert told.news(store.node) == Definitions(documents=[TWO])
    assert told.news(store.node) is None
    metadata.queues = queues
    await store.create_queue("default", "two", queue.config)
    assert [one.name for one in told.news(store.node).queues] == ["two"]  # type: ignore[union-attr]
