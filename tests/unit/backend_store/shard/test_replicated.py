"""One replica on a real disk, with nobody around it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from backend_store.cluster.coordinator import boot_seconds
from backend_store.core.replication.entries import Draft, Entry
from backend_store.core.replication.follower import Follower
from backend_store.core.replication.log import ProtocolBroken
from backend_store.core.replication.messages import Diverged, Fetch, Fetched, Message
from backend_store.core.replication.record import (
    Change,
    DiskId,
    Identity,
    Incarnation,
    NodeId,
    PartitionRecord,
    first_record,
)
from backend_store.model import Epoch, Offset, Unavailable
from backend_store.node.node import wall_clock_ms
from backend_store.shard import entry_rows
from backend_store.shard.interface import ShardNumber
from backend_store.shard.replicated import Replicated, now_ms
from backend_store.storage.engine import Batch, Table
from tests.support.patience import eventually
from tests.support.replicas import changed

pytestmark = pytest.mark.anyio
A, B = NodeId("a"), NodeId("b")
ENTRIES = 1_000
AT_ONCE = 100


class Nobody:
    """What is around a replica that is alone."""

    def send(self, to: NodeId, message: Message) -> None: ...

    def submit(self, shard: ShardNumber, change: Change) -> None: ...

    def reread(self, shard: ShardNumber) -> None: ...

    def followed(self, shard: ShardNumber) -> None: ...
    def confirmed(self, shard: ShardNumber) -> None: ...


def opened(folder: Path, *, inc: int = 1) -> tuple[Replicated, list[BaseException]]:
    """a's replica, and what would have ended its process."""
    fatal: list[BaseException] = []
    return Replicated(ShardNumber(0), (A, Incarnation(inc)), folder, Nobody(), on_fatal=fatal.append), fatal


def led_by(replicated: Replicated, *, epoch: int = 1) -> PartitionRecord:
    """b is a replica that is away: the log is kept for it."""
    first = first_record(0, {A: DiskId(replicated.store.disk)}, min_in_sync=1)
    inc = replicated.replica.me.inc
    return changed(first, epoch=epoch, leader=A, leader_inc=inc, replicas=(A, B))


async def stored(replicated: Replicated) -> None:
    await eventually(lambda: not replicated.store.is_busy and replicated.replica.log.is_clean, "all is on the disk")


def entries_of(replicated: Replicated) -> int:
    return len(replicated.store.engine.scan(Table.REPLICATION, entry_rows.entry_key(0), b"f", 1 << 20))


async def test_log_that_nobody_needs_any_more_is_deleted_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a replica is given up, what was kept for it is a gigabyte: in one commit all replicas would stand still."""
    monkeypatch.setattr(entry_rows, "TRIM_ROWS_MAX", AT_ONCE)
    replicated, fatal = opened(tmp_path / "shard")
    record = led_by(replicated)
    replicated.on_record(record)
    await stored(replicated)
    drafts = [Draft(1, (b"",))] * ENTRIES
    assert isinstance(replicated.replica.append(drafts, now_ms=now_ms(), wall_ms=wall_clock_ms()), tuple)
    replicated.look(0.0, [A])
    await stored(replicated)
    replicated.look(0.0, [A])
    await stored(replicated)
    left = entries_of(replicated)
    assert left == ENTRIES + 1
    replicated.on_record(changed(record, replicas=(A,)))
    replicated.look(0.0, [A])
    looks = 0
    while left:
        if looks == 3:
            await replicated.close()
            replicated, fatal = opened(tmp_path / "shard", inc=2)
        replicated.look(0.0, [A])
        await stored(replicated)
        looks += 1
        assert left - AT_ONCE <= entries_of(replicated) < left
        left = entries_of(replicated)
    assert looks > ENTRIES // AT_ONCE and not fatal
    assert replicated.replica.log.start == ENTRIES + 1
    await replicated.close()


async def test_log_is_deleted_though_no_other_entry_comes(tmp_path: Path) -> None:
    """What is deleted waits for the next entry's commit, and not for ever where none comes."""
    replicated, fatal = opened(tmp_path / "shard")
    replicated.on_record(changed(led_by(replicated), replicas=(A,)))
    await stored(replicated)
    replicated.look(boot_seconds() + 60, [A])
    await stored(replicated)
    done: list[BaseException | None] = []
    assert replicated.append(Batch(), b"last", done.append)
    await eventually(lambda: done == [None], "it is confirmed")
    await stored(replicated)
    assert entries_of(replicated)

    def is_deleted() -> bool:
        replicated.look(boot_seconds() + 60, [A])
        return not entries_of(replicated)

    await eventually(is_deleted, "the log is trimmed")
    assert not fatal
    await replicated.close()


async def test_follower_far_behind_is_served_from_the_disk_and_one_that_keeps_up_from_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what is on the disk only the newest entries stay in memory, within a bound of bytes."""
    monkeypatch.setattr("backend_store.shard.replicated.RECENT_BYTES_MAX", 1_000)
    read: list[int] = []
    replicated, _ = opened(tmp_path / "shard")
    from_disk = replicated.store.entries

    def entries(start: Offset, end: int, bytes_max: int) -> list[Entry]:
        read.append(start)
        return from_disk(start, end, bytes_max)

    monkeypatch.setattr(replicated.store, "entries", entries)
    sent: list[Message] = []
    monkeypatch.setattr(Nobody, "send", lambda self, to, message: sent.append(message))
    replicated.on_record(changed(led_by(replicated), is_released=True))
    await stored(replicated)
    for number in range(AT_ONCE):
        assert replicated.append(Batch(), b"%099d" % number, lambda error: None)
        await stored(replicated)
    sender = Identity(B, Incarnation(1), disk=DiskId("disk of b"))
    for request, end in ((1, AT_ONCE - 2), (2, 1)):
        replicated.on_message(B, Fetch(0, Epoch(1), request, sender, Offset(end), Epoch(1)))
    near, far = [found for found in sent if isinstance(found, Fetched)]
    assert (near.start, len(near.entries)) == (AT_ONCE - 2, 3)
    assert (far.start, len(far.entries)) == (1, AT_ONCE)
    assert read and set(read) == {1}
    await replicated.close()


async def test_leader_whose_session_is_known_to_be_lost_serves_no_longer(tmp_path: Path) -> None:
    replicated, _ = opened(tmp_path / "shard")
    replicated.on_record(changed(led_by(replicated), is_released=True))
    await stored(replicated)
    replicated.look(boot_seconds() + 60, [A, B])
    assert replicated.may_serve
    replicated.look(None, [A, B])
    assert not replicated.may_serve
    await replicated.close()


async def test_a_message_that_breaks_the_protocol_ends_the_process(tmp_path: Path) -> None:
    """The replica stops before it writes what is wrong: an error that a line swallows would let it go on."""
    replicated, fatal = opened(tmp_path / "shard")
    record = led_by(replicated)
    replicated.on_record(record)
    await stored(replicated)
    assert replicated.replica.log.high_watermark == 1
    replicated.on_record(changed(record, epoch=2, leader=B))
    follower = replicated.replica.role
    assert isinstance(follower, Follower)
    replicated.on_message(B, Diverged(0, Epoch(2), follower.request, Offset(1), Epoch(0), Offset(0)))
    assert [type(error) for error in fatal] == [ProtocolBroken]
    await replicated.close()


async def test_nobody_is_heard_in_the_name_of_another(tmp_path: Path) -> None:
    """A fetch is an acknowledgement: one that a has not sent, but somebody in a's name, confirms what b lacks."""
    replicated, fatal = opened(tmp_path / "shard")
    first = led_by(replicated)
    replicated.on_record(changed(first, isr=(A, B), disks={**first.disks, B: DiskId("b")}))
    await stored(replicated)
    fetch = Fetch(0, Epoch(1), 1 << 40, Identity(B, Incarnation(1), DiskId("b")), Offset(1), Epoch(1))
    replicated.on_message(NodeId("gateway"), fetch)
    assert replicated.replica.log.high_watermark == 0
    replicated.on_message(B, fetch)
    assert replicated.replica.log.high_watermark == 1
    replicated.on_record(changed(first, epoch=Epoch(2), leader=B, version=first.version + 2))
    follower = replicated.replica.role
    assert isinstance(follower, Follower)
    forged = Diverged(0, Epoch(2), follower.request, Offset(1), Epoch(0), Offset(0))
    replicated.on_message(NodeId("c"), forged)
    assert not fatal and follower.asked_ms is not None
    await replicated.close()


async def test_replica_says_that_the_record_is_older_than_its_log(tmp_path: Path) -> None:
    replicated, _ = opened(tmp_path / "shard")
    replicated.on_record(led_by(replicated, epoch=5))
    await stored(replicated)
    await replicated.close()
    replicated, _ = opened(tmp_path / "shard", inc=2)
    replicated.on_record(led_by(replicated, epoch=3))
    assert replicated.replica.is_ahead and replicated.replica.role is None
    replicated.on_record(led_by(replicated, epoch=6))
    assert not replicated.replica.is_ahead and replicated.replica.leader is not None
    await replicated.close()


async def test_a_copy_that_was_closed_says_so_to_who_would_change_it(tmp_path: Path) -> None:
    """Its host waited for it for ever where it was to be renamed, and was not registered any more."""
    replicated, _ = opened(tmp_path)
    await replicated.close()
    for change in (replicated.rename(), replicated.change_quarantine(lambda changes: None)):
        with pytest.raises(Unavailable, match="is closed"):
            await asyncio.wait_for(change, 10)
