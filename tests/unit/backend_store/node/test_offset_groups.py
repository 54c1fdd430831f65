"""A group with offsets is in one place: one consumer at a time, in order, and going back takes along what is behind."""

from __future__ import annotations

from tests.support.streams import all_receipts, seqs_of, stream
from tests.support.world import VISIBILITY_MS, Consumer, attempts_by_seq, bodies_by_seq, receipts_by_seq


def test_with_offsets_one_consumer_at_a_time_gets_messages() -> None:
    world = stream()
    group, one, other = world.group(), Consumer(), Consumer()
    lease = group.leased(1, one)
    assert group.take(1, other) is None
    more = group.leased(2, one)
    assert seqs_of(more) == [1], "what is left of the chunk"
    assert all(group.ack(receipts_by_seq(more)[1]))
    assert seqs_of(group.leased(2, other)) == [2, 3], "nothing is out, so it may be another one's turn"
    assert group.take(1, one) is None and lease.bits == 0


def test_with_offsets_an_ack_settles_everything_before_it() -> None:
    world = stream()
    group, consumer = world.group(), Consumer()
    group.drained(consumer)
    receipts = all_receipts(consumer)
    assert group.ack(receipts[4]) == [True]
    assert (group.lag, group.position, consumer.released_total) == (1, 5, 5)
    assert group.ack(receipts[1]) == [True], "it was settled by the same consumer"
    world.crash()
    assert world.found().drained() == [5]


def test_with_offsets_a_nack_brings_back_everything_behind_it_in_order() -> None:
    world = stream(8)
    group, consumer = world.group(), Consumer()
    group.drained(consumer)
    receipts = all_receipts(consumer)
    assert group.nack(receipts[3]) == [True]
    assert sorted(consumer.lost_receipts) == sorted(receipts[seq] for seq in (4, 5, 6, 7))
    assert group.ack(receipts[6]) == [False], "it comes again: an ack would settle what was given back, too"
    assert group.ack(receipts[1]) == [True]
    group.give_back(consumer)
    again = Consumer()
    assert group.drained(again) == [2, 3, 4, 5, 6, 7]
    assert [attempts_by_seq(lease) for lease in again.leases][:2] == [{2: 2, 3: 2}, {4: 2, 5: 2}]


def test_with_offsets_a_nack_takes_no_receipt_from_what_lies_before_it() -> None:
    world = stream(4)
    group, consumer = world.group(), Consumer()
    group.drained(consumer)
    receipts = all_receipts(consumer)
    assert group.nack(receipts[2]) == [True]
    group.give_back(consumer)
    assert group.ack(receipts[3], receipts[2], receipts[1]) == [False, False, True]
    assert (group.position, group.drained()) == (2, [2, 3])


def test_with_offsets_a_second_nack_leaves_the_first_in_force() -> None:
    world = stream(4)
    group, consumer = world.group(), Consumer()
    group.drained(consumer)
    first = all_receipts(consumer)
    assert group.nack(first[1]) == [True]
    group.drained(consumer)
    again = all_receipts(consumer)
    assert group.nack(again[3]) == [True]
    group.give_back(consumer)
    assert group.ack(first[2]) == [False], "it was given back after this receipt"
    assert group.ack(again[2]) == [True]
    assert group.drained() == [3]


def test_with_offsets_several_nacks_in_one_request_are_one_way_back() -> None:
    world = stream(8)
    group, consumer = world.group(), Consumer()
    group.drained(consumer)
    receipts = all_receipts(consumer)
    assert group.nack(receipts[6], receipts[2], receipts[4]) == [True, True, True]
    group.give_back(consumer)
    assert group.drained() == [0, 1, 2, 3, 4, 5, 6, 7]


def test_with_offsets_a_delay_holds_the_whole_group() -> None:
    world = stream()
    group, consumer = world.group(), Consumer()
    group.drained(consumer)
    receipts = all_receipts(consumer)
    assert group.nack(receipts[2], due_ms=world.now_ms + 5000) == [True]
    assert group.ack(receipts[1]) == [True]
    assert group.take() is None
    world.pass_time(5000)
    assert group.drained() == [2, 3, 4, 5]


def test_with_offsets_a_message_that_comes_back_behind_a_delayed_one_goes_first() -> None:
    world = stream(2)
    group, consumer = world.group(), Consumer()
    receipts = receipts_by_seq(group.leased(2, consumer))
    assert group.nack(receipts[1], due_ms=world.now_ms + 5000) == [True]
    assert group.nack(receipts[0]) == [True]
    world.pass_time(5000)
    assert group.drained() == [0, 1]


def test_with_offsets_the_back_off_holds_the_group() -> None:
    world = stream(2, retry_backoff_ms=1000)
    group, consumer = world.group(), Consumer()
    assert group.nack(receipts_by_seq(group.leased(1, consumer))[0]) == [True]
    assert group.take() is None
    world.pass_time(1000)
    assert group.drained() == [0, 1]


def test_with_offsets_a_lease_that_runs_out_brings_back_what_is_behind_it() -> None:
    world = stream()
    group, consumer = world.group(), Consumer()
    group.leased(2, consumer, 1000)
    group.leased(2, consumer, 60_000)
    receipts = all_receipts(consumer)
    world.pass_time(1000)
    world.settle_down()
    assert sorted(consumer.lost_receipts) == sorted(receipts.values())
    assert consumer.released_total == 4
    assert group.drained() == [0, 1, 2, 3, 4, 5]


def test_with_offsets_a_receipt_that_ran_out_acks_while_nobody_else_has_its_messages() -> None:
    world = stream()
    group, consumer = world.group(), Consumer()
    group.leased(2, consumer)
    receipts = all_receipts(consumer)
    world.pass_time(VISIBILITY_MS)
    world.settle_down()
    assert group.ack(receipts[0]) == [True] and group.lag == 5
    lease = group.leased(1)
    assert seqs_of(lease) == [1] and group.ack(receipts[1]) == [False]


def test_with_offsets_the_next_consumer_goes_on_from_the_committed_place() -> None:
    world = stream()
    group, consumer = world.group(), Consumer()
    group.drained(consumer)
    assert group.ack(all_receipts(consumer)[1]) == [True]
    group.give_back(consumer)
    after = Consumer()
    assert group.drained(after) == [2, 3, 4, 5]
    assert bodies_by_seq(after.leases[0]) == {2: b"2", 3: b"3"}


def test_with_offsets_what_was_not_sent_goes_back_uncounted() -> None:
    world = stream()
    group, consumer = world.group(), Consumer()
    first, second, third = (group.leased(2, consumer) for _ in range(3))
    for lease in (third, second):
        group.view.unsent(lease)
    assert group.ack(receipts_by_seq(first)[1]) == [True]
    again = Consumer()
    assert group.drained(again) == [2, 3, 4, 5]
    assert [attempts_by_seq(lease) for lease in again.leases] == [{2: 1, 3: 1}, {4: 1, 5: 1}]


def test_with_offsets_extending_one_batch_keeps_the_order() -> None:
    world = stream()
    group, consumer = world.group(), Consumer()
    lease = group.leased(2, consumer, 1000)
    receipts = receipts_by_seq(lease)
    assert group.extend(receipts[1], visibility_ms=60_000) == [True]
    world.pass_time(1000)
    world.settle_down()
    assert sorted(consumer.lost_receipts) == sorted(receipts.values()), "1 stands behind 0"
    assert group.drained() == [0, 1, 2, 3, 4, 5]
