"""What a gateway is told: each change once, at the cost of what changed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from backend_store.client.embedded import EmbeddedStore
from backend_store.metadata import recent
from backend_store.metadata.data_keys import DataKey, StoredRotation
from backend_store.metadata.documents import Document
from backend_store.metadata.recent import Rows
from backend_store.model import ApiKey, QueueConfig, QueueDefinition, Quotas
from backend_store.service.definitions import Definitions, LeftBehind, Told
from tests.support.stores import made, opened

pytestmark = pytest.mark.anyio

ONE, TWO = Document("rule", "one", b"1"), Document("rule", "two", b"2")


@pytest.fixture
async def store() -> AsyncIterator[EmbeddedStore]:
    store = await opened()
    yield store
    await store.close()


class Untouched(Rows[Any, Any]):
    """Nobody looks at all that is in it."""

    def __init__(self, rows: Rows[Any, Any]) -> None:
        super().__init__(rows)
        self.recent = rows.recent

    def __iter__(self) -> Any:
        raise AssertionError("all rows were looked at")

    items = keys = values = __iter__


def guard(store: EmbeddedStore) -> None:
    """From here on nobody may look at all that there is."""
    metadata = store.node.metadata
    for kind in ("queues", "keys", "keys_used", "tenants", "maps"):
        setattr(metadata, kind, Untouched(getattr(metadata, kind)))
    metadata.elsewhere.by_name = Untouched(metadata.elsewhere.by_name)
    metadata.data_keys.by_id = Untouched(metadata.data_keys.by_id)
    metadata.moved._by_uid = Untouched(metadata.moved._by_uid)
    store.documents._rows = Untouched(Rows(store.documents.rows()))


def told(store: EmbeddedStore) -> Told:
    """A gateway that knows all that there is."""
    told = Told()
    told.news(store.node)
    return told


def key_of(queue: QueueDefinition) -> DataKey:
    return DataKey(7, queue.tenant, queue.uid, "master", b"wrapped", 0, 0)


async def test_each_change_is_told_without_a_look_at_what_did_not_change(store: EmbeddedStore) -> None:
    """Every change of one queue once cost a look at all, for each gateway."""
    metadata, config = store.node.metadata, QueueConfig()
    gone, moved, *_ = [(await made(store, f"q{number}")).definition for number in range(20)]
    await metadata.put_tenant("acme", 0)
    gateway = told(store)
    guard(store)

    new, _ = await metadata.create_queue("default", "new", QueueConfig(partitions=2), 0)
    assert gateway.news(store.node) == Definitions(queues=[new], maps=[metadata.maps[new.uid]])
    changed = await metadata.update_queue("default", "new", QueueConfig(partitions=2, max_attempts=7), 1)
    assert gateway.news(store.node) == Definitions(queues=[changed])
    await metadata.add_data_keys([("q0", key_of(gone))])
    assert gateway.news(store.node) == Definitions(data_keys=[key_of(gone)])
    await metadata.delete_queue("default", "q0", lambda known, batch: None)
    assert gateway.news(store.node) == Definitions(queues_gone=[("default", "q0")], data_keys_gone=[7])
    went = await metadata.move_queue("default", "q1", "q2", 9)
    assert gateway.news(store.node) == Definitions(queues_gone=[("default", "q1")], moved=[went])
    await metadata.emptied(went, lambda batch: None)
    assert gateway.news(store.node) == Definitions(moved=[metadata.moved[moved.uid]])
    metadata.elsewhere.shards = 2
    far, _ = await metadata.create_queue("default", "far", config, 0)
    assert far.shard == 1 and gateway.news(store.node) == Definitions(queues=[far])
    await metadata.delete_elsewhere("default", "far")
    assert gateway.news(store.node) == Definitions(queues_gone=[("default", "far")])
    acme, _ = await metadata.put_tenant("acme", 0, Quotas(queues=1))
    assert gateway.news(store.node) == Definitions(tenants=[acme])
    await store.documents.write([ONE])
    assert gateway.news(store.node) == Definitions(documents=[ONE])
    assert gateway.news(store.node) is None


async def test_keys_and_their_use_are_told_without_a_look_at_the_others(store: EmbeddedStore) -> None:
    metadata = store.node.metadata
    key = ApiKey("mine", "mine", "default", ("consume",), b"", 0)
    await metadata.put_key(key)
    gateway = told(store)
    metadata.keys_used = Untouched(metadata.keys_used)
    await metadata.note_keys_used({"mine": 60_000, "of nobody": 60_000})
    assert gateway.news(store.node) == Definitions(keys_used={"mine": 60_000})
    await metadata.delete_key("mine")
    assert gateway.news(store.node) == Definitions(keys_gone=["mine"])


async def test_of_a_name_that_was_given_anew_the_queue_that_has_it_now_is_told(store: EmbeddedStore) -> None:
    before = await made(store, "orders")
    gateway = told(store)
    await store.delete_queue("default", "orders")
    after = await made(store, "orders")
    assert after.uid != before.uid
    assert gateway.news(store.node) == Definitions(queues=[after.definition])


async def test_who_missed_more_changes_than_are_remembered_has_to_be_told_everything(
    store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recent, "ROW_CHANGES_KEPT_MAX", 3)
    behind, here = told(store), told(store)
    for number in range(6):
        queue = await made(store, f"q{number}")
        assert here.news(store.node) == Definitions(queues=[queue.definition])
    with pytest.raises(LeftBehind):
        behind.news(store.node)


async def test_a_changed_row_is_told_once_and_whatever_else_there_is_is_not_looked_at(store: EmbeddedStore) -> None:
    await made(store, "orders")
    await store.documents.write([ONE, TWO])
    told = Told()
    first = told.news(store.node)
    assert first is not None and set(first.documents) == {ONE, TWO} and len(first.queues) == 1
    changed = Document("rule", "one", b"3")
    await store.documents.write([changed, Document("rule", "two", None)])
    guard(store)
    assert told.rows(store.node) == Definitions(documents=[changed], documents_gone=[("rule", "two")])
    assert told.rows(store.node) is None
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


async def test_of_many_rows_that_one_commit_wrote_each_is_told(
    store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few are remembered: they are forgotten with a later change."""
    monkeypatch.setattr(recent, "ROW_CHANGES_KEPT_MAX", 3)
    await store.documents.write([ONE, TWO])
    gateway, behind = told(store), told(store)
    many = [Document("rule", f"{number}", b"") for number in range(5)]
    await store.documents.write(many)
    assert gateway.rows(store.node) == Definitions(documents=many)
    await store.documents.write([Document("rule", "two", None)])
    assert gateway.rows(store.node) == Definitions(documents_gone=[("rule", "two")])
    with pytest.raises(LeftBehind):
        behind.rows(store.node)
