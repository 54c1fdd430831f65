"""Definitions in memory and on disk: memory changes only after the row is durable, and writers take turns."""

from __future__ import annotations

import asyncio

import pytest

from backend_store.metadata import embedded
from backend_store.metadata.embedded import Metadata
from backend_store.metadata.moved import MovedQueues
from backend_store.model import ApiKey, Conflict, NotFound, QueueConfig, QueueDefinition, QueueNotFound, Quotas
from backend_store.storage.engine import Batch
from backend_store.storage.memory import MemoryEngine

pytestmark = pytest.mark.anyio

STREAM = QueueConfig(kind="stream")


class Disk:
    """Commits when the test lets it."""

    def __init__(self) -> None:
        self.engine = MemoryEngine()
        self.may_write = asyncio.Event()
        self.may_write.set()
        self.fails = False

    async def write(self, rows: Batch) -> None:
        await self.may_write.wait()
        if self.fails:
            raise OSError("the disk failed")
        self.engine.commit(rows, lambda: None)

    def metadata(self) -> Metadata:
        return Metadata(self.engine, self.write)


@pytest.fixture
async def disk() -> Disk:
    return Disk()


def nothing(definition: QueueDefinition, batch: Batch) -> None:
    """No other rows change."""


async def test_what_was_written_is_there_after_a_restart(disk: Disk) -> None:
    metadata = disk.metadata()
    queue, is_new = await metadata.create_queue("default", "q", STREAM, 5)
    await metadata.put_tenant("acme", 6)
    key = ApiKey("k", "name", "acme", ("publish:*",), b"h", 7)
    await metadata.put_key(key)
    again = disk.metadata()
    assert is_new and again.find("default", "q") == queue
    assert (list(again.tenants), again.keys) == (["default", "acme"], {"k": key})


async def test_the_same_config_again_is_no_error_and_another_one_is(disk: Disk) -> None:
    metadata = disk.metadata()
    queue, _ = await metadata.create_queue("default", "q", QueueConfig(), 5)
    assert await metadata.create_queue("default", "q", QueueConfig(), 9) == (queue, False)
    with pytest.raises(Conflict):
        await metadata.create_queue("default", "q", STREAM, 9)


async def test_a_queue_is_found_only_when_it_is_durable(disk: Disk) -> None:
    metadata = disk.metadata()
    disk.may_write.clear()
    making = asyncio.create_task(metadata.create_queue("default", "q", QueueConfig(), 5))
    await asyncio.sleep(0)
    with pytest.raises(QueueNotFound):
        metadata.find("default", "q")
    disk.may_write.set()
    await making
    assert metadata.find("default", "q").name == "q"


async def test_two_who_create_one_queue_at_once_get_one(disk: Disk) -> None:
    metadata = disk.metadata()
    made = await asyncio.gather(*(metadata.create_queue("default", "q", QueueConfig(), n) for n in range(5)))
    assert [is_new for _, is_new in made] == [True] + [False] * 4
    assert len({queue.uid for queue, _ in made}) == 1


async def test_a_failed_write_changes_nothing(disk: Disk) -> None:
    metadata = disk.metadata()
    queue, _ = await metadata.create_queue("default", "q", QueueConfig(), 5)
    disk.fails = True
    with pytest.raises(OSError):
        await metadata.create_queue("default", "r", QueueConfig(), 5)
    with pytest.raises(OSError):
        await metadata.update_queue("default", "q", STREAM, queue.version)
    with pytest.raises(OSError):
        await metadata.delete_queue("default", "q", nothing)
    assert metadata.find("default", "q") == queue and ("default", "r") not in metadata.queues


async def test_a_number_of_a_queue_is_never_used_twice(disk: Disk) -> None:
    metadata = disk.metadata()
    uids = []
    for _ in range(5):
        queue, _ = await metadata.create_queue("default", "q", QueueConfig(), 5)
        uids.append(queue.uid)
        await metadata.delete_queue("default", "q", nothing)
        metadata = disk.metadata()
    assert uids == sorted(set(uids))


async def test_an_update_needs_the_version_it_is_based_on(disk: Disk) -> None:
    metadata = disk.metadata()
    queue, _ = await metadata.create_queue("default", "q", QueueConfig(), 5)
    changed = await metadata.update_queue("default", "q", QueueConfig(visibility_timeout_ms=1), queue.version)
    assert changed is not None and changed.version == queue.version + 1 and changed.uid == queue.uid
    assert await metadata.update_queue("default", "q", QueueConfig(), queue.version) is None
    assert disk.metadata().find("default", "q") == changed


async def test_a_deletion_takes_other_rows_with_it_in_one_commit(disk: Disk) -> None:
    metadata = disk.metadata()
    await metadata.create_queue("default", "q", QueueConfig(), 5)
    before = disk.engine.commits
    seen: list[str] = []
    await metadata.delete_queue("default", "q", lambda definition, batch: seen.append(definition.name))
    assert (seen, disk.engine.commits) == (["q"], before + 1)
    with pytest.raises(QueueNotFound):
        await metadata.delete_queue("default", "q", nothing)


async def test_queues_of_two_tenants_share_a_name_and_nothing_else(disk: Disk) -> None:
    metadata = disk.metadata()
    await metadata.put_tenant("acme", 1)
    mine, _ = await metadata.create_queue("default", "q", QueueConfig(), 5)
    theirs, _ = await metadata.create_queue("acme", "q", STREAM, 5)
    assert mine.uid != theirs.uid
    await metadata.delete_queue("acme", "q", nothing)
    assert disk.metadata().find("default", "q") == mine


async def test_a_tenant_goes_with_its_keys_and_only_without_queues(disk: Disk) -> None:
    metadata = disk.metadata()
    await metadata.put_tenant("acme", 1)
    await metadata.put_key(ApiKey("k", "n", "acme", (), b"", 1))
    await metadata.put_key(ApiKey("mine", "n", "default", (), b"", 1))
    await metadata.create_queue("acme", "q", QueueConfig(), 5)
    with pytest.raises(Conflict, match="still has 1 queue, including 'q'"):
        await metadata.delete_tenant("acme")
    await metadata.delete_queue("acme", "q", nothing)
    await metadata.delete_tenant("acme")
    assert list(metadata.keys) == list(disk.metadata().keys) == ["mine"]
    with pytest.raises(NotFound):
        await metadata.delete_tenant("acme")
    with pytest.raises(Conflict):
        await metadata.delete_tenant("default")


async def test_a_quota_of_queues_counts_those_there_are(disk: Disk) -> None:
    await disk.metadata().put_tenant("acme", 1, Quotas(queues=2))
    metadata = disk.metadata()
    await metadata.create_queue("acme", "a", QueueConfig(), 5)
    await metadata.create_queue("acme", "b", QueueConfig(), 5)
    metadata = disk.metadata()
    with pytest.raises(Conflict, match="has 2 queues, and its quota is 2"):
        await metadata.create_queue("acme", "c", QueueConfig(), 5)
    await metadata.delete_queue("acme", "a", nothing)
    await metadata.create_queue("acme", "c", QueueConfig(), 5)
    await metadata.move_queue("acme", "b", "c", 9)
    await metadata.create_queue("acme", "d", QueueConfig(), 5)
    await metadata.create_queue("default", "e", QueueConfig(), 5)


async def test_so_many_deleted_queues_of_a_tenant_send_their_messages_on(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is a row, and they count in no quota of queues: who made and moved queues in turn once filled the disk."""
    monkeypatch.setattr(embedded, "MOVED_PER_TENANT_MAX", 2)
    metadata = disk.metadata()
    await metadata.create_queue("acme", "target", QueueConfig(), 5)
    for number in range(2):
        await metadata.create_queue("acme", "a", QueueConfig(), 5)
        moved = await metadata.move_queue("acme", "a", "target", 9 + number)
        await metadata.emptied(moved, lambda batch: None)
    metadata = disk.metadata()
    await metadata.create_queue("acme", "a", QueueConfig(), 5)
    with pytest.raises(Conflict, match="tenant 'acme' has reached the limit of 2 deleted queues"):
        await metadata.move_queue("acme", "a", "target", 12)
    assert metadata.find("acme", "a") and len(metadata.moved) == 2
    await metadata.create_queue("other", "a", QueueConfig(), 5)
    await metadata.move_queue("other", "a", "b", 12)
    await metadata.forget_moved(9)
    await metadata.move_queue("acme", "a", "target", 12)
    assert len(metadata.moved) == 3


async def test_where_messages_go_is_found_without_a_look_at_all_queues_that_have_moved(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = disk.metadata()
    for until_ms in (9, 10):
        await metadata.create_queue("acme", "a", QueueConfig(), 5)
        await metadata.move_queue("acme", "a", f"until {until_ms}", until_ms)
    metadata = disk.metadata()
    assert metadata.forwarding("acme", "a", 8) == "until 10", "the last one counts"
    for moved in list(metadata.moved.values()):
        await metadata.emptied(moved, lambda batch: None)
    with monkeypatch.context() as patched:
        patched.setattr(MovedQueues, "__iter__", None)
        assert metadata.forwarding("acme", "a", 9) == "until 10"
        assert metadata.forwarding("acme", "a", 10) is metadata.forwarding("other", "a", 8) is None
    await metadata.forget_moved(10)
    assert metadata.forwarding("acme", "a", 9) is None and not metadata.moved


async def test_keys_are_deleted_once(disk: Disk) -> None:
    metadata = disk.metadata()
    await metadata.put_key(ApiKey("k", "n", "default", (), b"", 1))
    await metadata.delete_key("k")
    assert disk.metadata().keys == {}
    with pytest.raises(NotFound):
        await metadata.delete_key("k")


async def make(metadata: Metadata, what: str, number: int) -> None:
    if what == "QUEUES_MAX":
        await metadata.create_queue("default", f"q{number}", QueueConfig(), 5)
    elif what == "KEYS_MAX":
        await metadata.put_key(ApiKey(f"k{number}", "n", "default", (), b"", 1))
    else:
        await metadata.put_tenant(f"t{number}", 1)


@pytest.mark.parametrize("limit", ["QUEUES_MAX", "KEYS_MAX", "TENANTS_MAX"])
async def test_there_are_no_more_than_the_limit(disk: Disk, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(embedded, limit, 2)
    metadata = disk.metadata()
    await make(metadata, limit, 1)
    if limit != "TENANTS_MAX":  # the tenant that always exists is one of them
        await make(metadata, limit, 2)
    with pytest.raises(Conflict, match="per node is reached"):
        await make(metadata, limit, 3)


async def test_a_key_may_be_replaced_at_the_limit(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "KEYS_MAX", 1)
    metadata = disk.metadata()
    old = ApiKey("k", "old", "default", (), b"", 1)
    await metadata.put_key(old)
    await metadata.put_key(ApiKey("k", "new", "default", (), b"", 1), instead_of=old)
    assert disk.metadata().keys["k"].name == "new"


async def test_more_definitions_than_one_read_takes_are_all_loaded(disk: Disk) -> None:
    metadata = disk.metadata()
    for number in range(2_500):
        await metadata.create_queue("default", f"q{number}", QueueConfig(), 5)
    assert len(disk.metadata().queues) == 2_500
