"""Data keys: an id means one key for good, whoever gave it out."""

from __future__ import annotations

import msgspec
import pytest

from backend_store.metadata.data_keys import DataKey
from backend_store.metadata.embedded import Metadata
from backend_store.model import QueueConfig, Unavailable
from backend_store.remote.definitions.definitions import DataKeyRows
from backend_store.storage.engine import Batch
from backend_store.storage.memory import MemoryEngine

pytestmark = pytest.mark.anyio


class Leaders:
    """One store, led by one after the other: what is not on its disk the next one does not know."""

    def __init__(self) -> None:
        self._engine = MemoryEngine()

    async def _write(self, rows: Batch) -> None:
        self._engine.commit(rows, lambda: None)

    def next(self) -> Metadata:
        return Metadata(self._engine, self._write)


@pytest.fixture
async def leaders() -> Leaders:
    leaders = Leaders()
    for name in ("a", "b"):
        await leaders.next().create_queue("default", name, QueueConfig(), 5)
    return leaders


def a_key(metadata: Metadata, queue: str, key_id: int) -> tuple[str, DataKey]:
    uid = metadata.find("default", queue).uid
    return queue, DataKey(key_id, "default", uid, "master", f"{queue} {key_id}".encode(), 7, 100)


async def test_an_id_that_two_gateways_were_given_is_the_first_ones(leaders: Leaders) -> None:
    first = leaders.next().data_keys.reserve(10)
    leader = leaders.next()
    assert leader.data_keys.reserve(10) == first, "nothing was stored of the first range"
    (_, mine), theirs = a_key(leader, "a", first.start), a_key(leader, "b", first.start)
    assert await leader.add_data_keys([("a", mine)]) == {mine.id}
    assert await leader.add_data_keys([theirs, a_key(leader, "b", mine.id + 1)]) == {mine.id + 1}
    for metadata in (leader, leaders.next()):
        assert metadata.data_keys.by_id[mine.id] == mine
        assert metadata.data_keys.ids_of == {mine.uid: [mine.id], theirs[1].uid: [mine.id + 1]}


async def test_a_key_that_is_sent_again_is_stored(leaders: Leaders) -> None:
    leader = leaders.next()
    key = a_key(leader, "a", 4)
    assert await leader.add_data_keys([key]) == await leaders.next().add_data_keys([key]) == {4}


async def test_what_is_said_of_anothers_key_changes_nothing(leaders: Leaders) -> None:
    leader = leaders.next()
    await leader.add_data_keys([a_key(leader, "a", 4)])
    _, stranger = a_key(leader, "b", 4)
    await leader.change_data_keys([msgspec.structs.replace(stranger, blocks=200)])
    assert leader.data_keys.by_id[4] == leaders.next().data_keys.by_id[4] == a_key(leader, "a", 4)[1]


async def test_no_id_is_given_out_below_one_that_is_stored(leaders: Leaders) -> None:
    leader = leaders.next()
    await leader.add_data_keys([a_key(leader, "a", 10_004)])
    assert leader.data_keys.reserve(1).start == leaders.next().data_keys.reserve(1).start == 10_005
    assert leaders.next().data_keys.new_id() == 10_005


async def test_a_gateway_leaves_out_ids_that_it_knows_of() -> None:
    rows = DataKeyRows()
    rows.ids = range(4, 8)
    rows.by_id = {key_id: DataKey(key_id, "default", 1, "master", b"", 7, 0) for key_id in (4, 5, 7)}
    assert rows.new_id() == 6
    with pytest.raises(Unavailable):
        rows.new_id()
