"""The partition as a shell: who is answered when, what is refused, and what a broken entry costs."""

from __future__ import annotations

import pytest

from backend_store.core.leases.receipts import by_token
from backend_store.core.log.chunk import KIND_JSON, plain_blocks
from backend_store.core.ready import backlog
from backend_store.model import Offset, OutcomeUnknown, Overloaded, Published, QueueNotFound, StorageFull
from backend_store.node.commit import inbox
from backend_store.storage.engine import Batch, Table
from backend_store.storage.keys import log_key
from tests.support.world import REPLICA, VISIBILITY_MS, World, bodies_by_seq, receipts_by_seq


def test_publishes_of_one_cycle_share_chunks_and_each_learns_its_place() -> None:
    world = World()
    answers = [world.publish(*[b"1"] * count) for count in (3, 1, 60)]
    world.commit()
    assert answers == [[Published(0, Offset(0), 3)], [Published(0, Offset(3), 1)], [Published(0, Offset(4), 60)]]
    assert world.partition.read(Offset(1)) is None
    chunk = world.partition.read(Offset(0))
    assert chunk is not None and chunk.count == 64


def test_nobody_is_answered_before_the_commit_landed() -> None:
    world = World()
    answers = world.publish(b"1")
    assert answers == []
    world.committer.prepare()
    assert answers == []
    world.committer.land()
    assert len(answers) == 1


def test_a_full_disk_refuses_publishes_and_nothing_else() -> None:
    world = World()
    world.stored(b"1")
    world.allowed = False
    (refused,) = world.publish(b"2")
    assert isinstance(refused, StorageFull) and "disk" in refused.detail
    assert world.ack(*receipts_by_seq(world.leased()).values()) == [True]


def test_publishes_that_wait_for_the_disk_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "INBOX_MESSAGES_MAX", 5)
    world = World()
    taken = world.publish(*[b"1"] * 5)
    (refused,) = world.publish(b"6")
    assert isinstance(refused, Overloaded) and refused.retry_after_ms
    world.commit()
    assert isinstance(taken[0], Published)
    assert isinstance(world.stored(b"6"), Published)


def test_bytes_that_wait_for_the_disk_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "INBOX_BYTES_MAX", 1000)
    world = World()
    world.publish(b" " * 900)
    (refused,) = world.publish(b" " * 900)
    assert isinstance(refused, Overloaded)


def test_a_failed_commit_tells_everybody_who_waited_for_it() -> None:
    world = World()
    world.stored(b"1", b"2", b"3")
    first, second, _ = receipts_by_seq(world.leased(3)).values()
    answers: list[object] = []
    world.partition.publish(plain_blocks(KIND_JSON, [b"4"]), answers.append)
    world.main.settle(by_token([first]), answers.append)
    world.main.give_back(by_token([second]), 0, None, answers.append)
    world.partition.purge(answers.append)
    world.committer.prepare()
    world.committer.fail(OutcomeUnknown("the disk failed"))
    assert [type(answer) for answer in answers] == [OutcomeUnknown] * 4


def test_a_caller_that_fails_on_its_answer_takes_nobody_with_it() -> None:
    world = World()

    def fails(answer: object) -> None:
        raise RuntimeError("the caller's own fault")

    world.partition.publish(plain_blocks(KIND_JSON, [b"1"]), fails)
    answers = world.publish(b"2")
    world.commit()
    assert len(answers) == 1 and world.counts == (2, 0, 0)


def test_a_deleted_queue_refuses_what_waits_and_what_comes() -> None:
    world = World()
    world.stored(b"1")
    (receipt,) = receipts_by_seq(world.leased()).values()
    answers: list[object] = []

    def ask() -> None:
        world.partition.publish(plain_blocks(KIND_JSON, [b"2"]), answers.append)
        world.main.settle(by_token([receipt]), answers.append)
        world.main.give_back(by_token([receipt]), 0, None, answers.append)
        world.partition.purge(answers.append)

    ask()
    world.partition.close()
    ask()
    assert [type(answer) for answer in answers] == [QueueNotFound] * 8
    before = {table: dict(rows) for table, rows in world.engine._rows.items()}
    world.commit()
    assert world.engine._rows == before, "nothing more is written"
    assert world.take() is None


def test_a_commit_that_was_on_its_way_when_the_queue_was_deleted_is_answered() -> None:
    world = World()
    answers = world.publish(b"1")
    world.committer.prepare()
    world.partition.close()
    world.committer.land()
    assert answers == [Published(0, Offset(0), 1)]


# ---------------------------------------------------------------------------------------------------- damage


def damage(world: World, base: int) -> None:
    key = log_key(REPLICA, base)
    data = world.engine.get(Table.LOG, key)
    assert data is not None
    batch = Batch()
    batch.put(Table.LOG, key, data[:-1] + bytes([data[-1] ^ 1]))
    world.engine.commit(batch, lambda: None)


def test_a_broken_chunk_is_put_aside_and_the_others_are_served() -> None:
    world = World()
    for number in range(3):
        world.stored(b"%d" % number)
    damage(world, 1)
    world.crash()
    seen = [body for _ in range(2) for body in bodies_by_seq(world.leased()).values()]
    assert seen == [b"0", b"2"]
    assert set(world.quarantined) == {1}


def test_a_chunk_that_breaks_while_it_is_not_in_memory_is_put_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "CHUNKS_LOADED_BYTES_MAX", 100)
    world = World()
    for number in range(4):
        world.stored(b"%d" % number + b" " * 100)
    consumer_leases = [world.leased() for _ in range(4)]
    for lease in consumer_leases:
        world.main.give_back_lease(lease)
    world.commit()
    damage(world, 1)
    seen = [int(body) for _ in range(3) for body in bodies_by_seq(world.leased()).values()]
    assert sorted(seen) == [0, 2, 3]
    assert world.take() is None and 1 in world.quarantined


def test_what_is_written_off_no_longer_counts() -> None:
    world = World()
    world.stored(b"1", b"2", b"3")
    world.partition.write_off(0, 2, 10, 0)
    world.commit()
    assert world.counts[0] == 1


# ------------------------------------------------------------------------------------------------------ time


def test_the_next_wakeup_is_the_first_deadline_or_due_time() -> None:
    world = World()
    world.stored(b"1", b"2")
    assert world.partition.next_wakeup_ms() is None
    lease = world.leased(1)
    assert world.partition.next_wakeup_ms() == world.now_ms + VISIBILITY_MS
    second = world.leased(1)
    world.nack(*receipts_by_seq(second).values(), due_ms=world.now_ms + 10)
    assert world.partition.next_wakeup_ms() == world.now_ms + 10
    world.ack(*receipts_by_seq(lease).values())
    world.pass_time(10)
    assert world.partition.next_wakeup_ms() is None


def test_a_decision_between_publishes_does_not_send_delivery_to_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Acks take places in the log too; the next chunk is still the next one."""
    world = World()
    reads: list[Offset] = []
    monkeypatch.setattr(world.partition, "read", reads.append)
    for number in range(5):
        world.stored(b"%d" % number)
        assert world.ack(*receipts_by_seq(world.leased()).values()) == [True]
    assert reads == []


# ---------------------------------------------------------------------------------------------------- streams


def test_a_stream_tells_what_was_appended_in_order() -> None:
    world = World(kind="stream")
    seen: list[int] = []
    world.partition.on_appended = lambda chunks: seen.extend(c.base for c in chunks)
    for _ in range(3):
        world.stored(b"1", b"2")
    assert seen == [0, 2, 4]
    assert world.partition.state.live == 6


def test_a_purged_stream_begins_after_the_purge() -> None:
    world = World(kind="stream")
    world.stored(b"1", b"2")
    purged: list[int] = []
    world.partition.on_purged = lambda: purged.append(world.partition.state.floor)
    answers = world.purge()
    world.commit()
    assert (answers, purged) == ([2], [2])
    assert world.stored(b"3") == Published(0, Offset(3), 1)
