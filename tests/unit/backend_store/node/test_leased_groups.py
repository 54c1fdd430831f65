"""A group with leases is a work queue over a stream: its messages are settled one by one, and only for it."""

from __future__ import annotations

from backend_store.node.limits import GROUP_IDLE_MS
from backend_store.storage.engine import Table
from tests.support.streams import StreamWorld, all_receipts, seqs_of, stream
from tests.support.world import VISIBILITY_MS, Consumer, attempts_by_seq, receipts_by_seq


def test_a_leased_group_is_a_work_queue_over_the_stream() -> None:
    world = stream()
    group = world.group(mode="leases")
    one, other = Consumer(), Consumer()
    first, second = group.leased(2, one), group.leased(2, other)
    assert (seqs_of(first), seqs_of(second)) == ([0, 1], [2, 3])
    assert group.ack(receipts_by_seq(second)[3]) == [True]
    assert group.nack(receipts_by_seq(first)[1]) == [True]
    again = group.leased(2)
    assert (seqs_of(again), attempts_by_seq(again)) == ([1], {1: 2})
    assert (group.lag, group.view.ready, group.view.core.in_flight) == (5, 2, 3)


def test_a_leased_group_gives_up_after_the_last_attempt() -> None:
    world = stream(2, max_attempts=2)
    group, other = world.group(mode="leases"), world.group("other")
    for _ in range(2):
        assert group.nack(receipts_by_seq(group.leased())[0]) == [True]
    assert group.drained() == [1] and group.lag == 1
    dead = world.partition.read(0, 32)
    assert dead is not None and dead.messages.bodies == [b"0"]
    assert other.drained() == [0, 1] and world.kept == [0, 1], "for the others nothing has happened"


def test_a_lease_of_a_group_runs_out() -> None:
    world = stream(2)
    group, consumer = world.group(mode="leases"), Consumer()
    lease = group.leased(2, consumer)
    world.pass_time(VISIBILITY_MS)
    world.settle_down()
    assert len(consumer.lost_receipts) == 2
    assert attempts_by_seq(group.leased(2)) == {0: 2, 1: 2}
    assert group.ack(lease.token + "00") == [False]


def test_a_delay_of_a_leased_group_outlives_a_crash() -> None:
    world = stream(2)
    group = world.group(mode="leases")
    assert group.nack(receipts_by_seq(group.leased())[0], due_ms=world.now_ms + 5000) == [True]
    world.crash()
    group = world.found()
    assert group.drained() == [1]
    world.pass_time(5000)
    assert group.drained() == [0]


def test_what_is_settled_out_of_order_stays_settled() -> None:
    world = stream(8)
    group = world.group(mode="leases")
    consumer = Consumer()
    group.drained(consumer)
    receipts = all_receipts(consumer)
    assert all(group.ack(*(receipts[seq] for seq in (2, 3, 6, 7, 5))))
    assert (group.position, group.lag) == (0, 3)
    world.crash()
    group = world.found()
    assert group.drained() == [0, 1, 4]


def test_marks_go_when_the_group_has_passed_them() -> None:
    world = stream(8)
    group = world.group(mode="leases")
    consumer = Consumer()
    group.drained(consumer)
    receipts = all_receipts(consumer)
    group.ack(*(receipts[seq] for seq in (2, 3, 4, 5)))
    assert len(world.engine.scan(Table.MARKS, b"", b"\xff" * 20, 100)) == 4
    group.ack(receipts[0], receipts[1])
    world.settle_down()
    assert len(world.engine.scan(Table.MARKS, b"", b"\xff" * 20, 100)) == 1
    assert group.position == 6
    group.ack(receipts[6], receipts[7])
    assert world.engine.scan(Table.MARKS, b"", b"\xff" * 20, 100) == []


def test_a_group_may_begin_within_a_chunk_and_goes_on_there_after_a_crash() -> None:
    world = StreamWorld()
    world.stored(*[b"x"] * 10)
    group = world.group(wanted={"seq": 4}, mode="leases")
    assert group.ack(receipts_by_seq(group.leased())[4]) == [True]
    world.crash()
    group = world.found()
    assert (group.lag, group.drained()) == (5, [5, 6, 7, 8, 9])


def test_a_group_does_not_leave_memory_while_a_commit_moves_it_on() -> None:
    world = stream(2)
    receipts = receipts_by_seq(world.group(mode="leases").leased(2))
    world.crash()
    group = world.found()
    assert all(group.ack(*receipts.values())), "before the new process has read so far"
    assert group.take() is None
    world.publish(b"2")
    world.committer.prepare()
    world.committer.reach_the_disk()
    world.pass_time(1)
    world.pass_time(GROUP_IDLE_MS)
    assert group.take() is None
    world.committer.land()
    assert group.drained() == [3] and group.lag == 1
