"""The work view, driven through a partition whose commits the test makes: one rule of the queue a test."""

from __future__ import annotations

import pytest

from backend_store.core.leases.receipts import by_token
from backend_store.core.limits import IN_FLIGHT_PER_QUEUE_MAX, LEASE_MS_MIN
from backend_store.core.log.chunk import KIND_JSON, encode_entry, plain_blocks
from backend_store.core.log.records import EpochStart
from backend_store.core.ready import backlog, priorities, work_queue
from backend_store.model import Epoch, Offset, Overloaded, QueueConfig
from backend_store.storage.engine import Batch, Table
from backend_store.storage.keys import log_key
from tests.support.world import (
    REPLICA,
    VISIBILITY_MS,
    Consumer,
    World,
    attempts_by_seq,
    bodies_by_seq,
    receipts_by_seq,
)


def receipts(world: World, limit: int = 1, consumer: Consumer | None = None) -> list[str]:
    return list(receipts_by_seq(world.leased(limit, consumer)).values())


def world_with(*bodies: bytes) -> World:
    world = World()
    world.stored(*(bodies or (b"1",)))
    return world


# ------------------------------------------------------------------------------------------------ hand out


def test_messages_are_handed_out_in_the_order_of_their_arrival() -> None:
    world = World()
    for number in range(5):
        world.stored(*(b"%d" % (number * 3 + n) for n in range(3)))
    seen = [body for _ in range(5) for body in bodies_by_seq(world.leased(3)).values()]
    assert seen == [b"%d" % n for n in range(15)]
    assert world.take() is None


def test_no_more_are_handed_out_than_asked_for() -> None:
    world = world_with(*[b"1"] * 10)
    assert [len(bodies_by_seq(world.leased(4))) for _ in range(3)] == [4, 4, 2]


def test_a_message_is_handed_out_only_when_it_is_durable() -> None:
    world = World()
    answers = world.publish(b"1")
    assert world.take() is None
    world.committer.prepare()
    assert (world.take(), answers) == (None, [])
    world.committer.land()
    assert len(answers) == 1 and world.take() is not None


def test_a_queue_has_no_more_in_flight_than_its_limit() -> None:
    world = world_with(*[b"1"] * 10)
    world.view.policy = world.view.policy._replace(in_flight_max=3)
    first = receipts(world, 2)
    assert len(receipts(world, 5)) == 1
    assert world.take() is None
    assert world.ack(first[0]) == [True]
    assert len(receipts(world, 5)) == 1
    assert IN_FLIGHT_PER_QUEUE_MAX == 120_000


def test_the_shortest_lease_is_long_enough_to_reach_somebody() -> None:
    world = world_with(b"1")
    world.take(visibility_ms=0)
    world.pass_time(LEASE_MS_MIN - 1)
    assert world.counts == (0, 1, 0)
    world.pass_time(1)
    world.commit()
    assert world.counts == (1, 0, 0)


def test_a_backlog_stays_on_disk_and_comes_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(priorities, "READY_RUNS_AHEAD", 2)
    monkeypatch.setattr(backlog, "CHUNKS_LOADED_BYTES_MAX", 500)
    world = World()
    for number in range(50):
        world.stored(b"%d" % number + b" " * 100)
    assert len(world.view._chunks) <= 2
    seen = []
    for _ in range(50):
        lease = world.leased()
        seen += [int(body) for body in bodies_by_seq(lease).values()]
        assert len(world.view._loaded) <= 3
    assert seen == list(range(50))


def test_leases_of_one_turn_keep_their_messages_until_they_are_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many leases taken before any is written may be more bytes than stay loaded."""
    monkeypatch.setattr(backlog, "CHUNKS_LOADED_BYTES_MAX", 100)
    world = World()
    for number in range(20):
        world.stored(b"%d" % number + b" " * 100)
    leases = [world.leased() for _ in range(20)]
    assert [int(*bodies_by_seq(lease).values()) for lease in leases] == list(range(20))


# ------------------------------------------------------------------------------------------------- attempts


def test_an_attempt_counts_from_one_and_rises_with_each_return() -> None:
    world = world_with(b"1")
    for attempt in range(1, 6):
        lease = world.leased()
        assert attempts_by_seq(lease) == {0: attempt}
        world.nack(*receipts_by_seq(lease).values())


def test_an_attempt_that_was_never_sent_does_not_count() -> None:
    world = world_with(b"1", b"2")
    world.main.unsent(world.leased(2))
    assert world.counts == (2, 0, 0)
    lease = world.leased(2)
    assert attempts_by_seq(lease) == {0: 1, 1: 1}
    world.nack(*receipts_by_seq(lease).values())
    world.main.unsent(world.leased(2))
    assert attempts_by_seq(world.leased(2)) == {0: 2, 1: 2}


def test_an_attempt_that_was_taken_back_is_taken_back_on_the_disk_too() -> None:
    world = world_with(b"1")
    world.nack(*receipts(world))
    lease = world.leased()
    world.settle_down()  # attempt 2 is on the disk
    world.main.unsent(lease)
    world.settle_down()
    world.crash()
    assert attempts_by_seq(world.leased()) == {0: 2}


def test_an_attempt_that_began_is_remembered_over_a_crash() -> None:
    world = world_with(b"1", b"2", b"3")
    world.take(1)
    world.settle_down()
    world.crash()
    assert attempts_by_seq(world.leased(3)) == {0: 2, 1: 1, 2: 1}


def test_an_attempt_is_on_the_disk_before_the_message_is_handed_out_again() -> None:
    """Or a message that kills its consumer and the server with it would come as attempt 1 for ever."""
    world = World()
    world.stored(b"1")
    world.publish(b"2")
    world.committer.prepare()
    # Taken and given back while a commit is on its way that knows of neither.
    lease = world.leased()
    world.main.give_back_lease(lease)
    world.committer.land()
    assert not any(0 in attempts_by_seq(lease) for lease in [world.leased()])
    world.commit()
    assert attempts_by_seq(world.leased()) == {0: 2}
    world.crash()
    assert attempts_by_seq(world.leased())[0] >= 2


def test_messages_given_back_together_keep_their_order() -> None:
    world = World()
    for number in range(4):
        world.stored(b"%d" % number)
    consumer = Consumer()
    for _ in range(4):
        world.take(1, consumer)
    for lease in consumer.leases:
        world.main.give_back_lease(lease)
    world.commit()
    assert [list(bodies_by_seq(world.leased()).values()) for _ in range(4)] == [[b"0"], [b"1"], [b"2"], [b"3"]]


# --------------------------------------------------------------------------------------------------- settle


def test_an_ack_settles_once_it_is_durable() -> None:
    world = world_with(b"1")
    (receipt,) = receipts(world)
    answers: list[object] = []
    world.main.settle(by_token([receipt]), answers.append)
    world.committer.prepare()
    assert answers == [] and world.partition.state.acked_total == 0
    world.committer.land()
    assert len(answers) == 1
    assert (world.counts, world.partition.state.acked_total) == ((0, 0, 0), 1)


def test_an_ack_may_be_repeated() -> None:
    world = world_with(b"1", b"2")
    (receipt, other) = receipts(world, 2)
    assert world.ack(receipt, receipt) == [True, True]
    assert world.ack(receipt) == [True]
    assert world.partition.state.acked_total == 1
    assert world.ack(other, receipt) == [True, True]
    assert world.ack(other, receipt) == [True, True], "also when nothing of the chunk is left"


def test_two_acks_of_one_cycle_settle_once() -> None:
    world = world_with(b"1")
    (receipt,) = receipts(world)
    answers: list[dict[str, int]] = []
    for _ in range(2):
        world.main.settle(by_token([receipt]), answers.append)  # type: ignore[arg-type]
    world.commit()
    assert answers == [by_token([receipt])] * 2
    assert world.partition.state.acked_total == 1


def test_an_expired_receipt_acks_while_nobody_holds_the_message() -> None:
    world = world_with(b"1")
    (receipt,) = receipts(world)
    world.pass_time(VISIBILITY_MS)
    world.commit()
    assert world.counts == (1, 0, 0)
    assert world.ack(receipt) == [True]
    assert world.counts == (0, 0, 0) and world.take() is None


def test_a_stale_receipt_is_refused_once_the_message_was_handed_out_again() -> None:
    world = world_with(b"1")
    (stale,) = receipts(world)
    world.pass_time(VISIBILITY_MS)
    world.commit()
    (fresh,) = receipts(world)
    assert world.ack(stale) == [False]
    assert world.ack(fresh) == [True]
    assert world.ack(stale) == [False], "another receipt settled it"


def test_the_first_of_two_acks_wins() -> None:
    world = world_with(b"1")
    (first,) = receipts(world)
    world.nack(first)
    (second,) = receipts(world)
    world.nack(second)
    assert world.ack(first, second) == [True, False]


def test_a_delayed_message_can_be_acked_by_who_delayed_it() -> None:
    world = world_with(b"1")
    (receipt,) = receipts(world)
    world.nack(receipt, due_ms=world.now_ms + 1000)
    assert world.counts == (0, 0, 1)
    assert world.ack(receipt) == [True]
    assert world.counts == (0, 0, 0)
    world.pass_time(1000)
    assert world.take() is None


def test_a_receipt_of_before_a_crash_still_acks() -> None:
    world = world_with(b"1", b"2")
    first, second = receipts(world, 2)
    world.settle_down()
    world.crash()
    assert world.ack(first) == [True]
    assert world.counts == (1, 0, 0)
    lease = world.leased(2)
    assert list(bodies_by_seq(lease).values()) == [b"2"]
    assert world.ack(second) == [False], "the message has another holder now"


def test_a_receipt_speaks_for_the_messages_of_its_own_lease_only() -> None:
    world = world_with(*[b"1"] * 6)
    lease = world.leased(2)
    world.leased(2)
    genuine = receipts_by_seq(lease)[0]
    beside = [genuine[:-2] + digits for digits in ("02", "03", "04", "05", "06", "ff")]
    assert world.ack(*beside) == [False] * 6
    world.crash()
    assert world.ack(*beside) == [False] * 6
    assert world.ack(genuine) == [True]
    assert world.partition.state.acked_total == 1


def test_forged_and_foreign_receipts_settle_nothing() -> None:
    world, other = world_with(b"1"), World()
    other.view.key = other.view.key._replace(queue_uid=REPLICA + 1)
    other.stored(b"1")
    (genuine,), (foreign,) = receipts(world), receipts(other)
    other.view.key = other.view.key._replace(secret=b"x" * 32, queue_uid=REPLICA)
    other.stored(b"1")
    (other_key,) = receipts(other)
    forged = [
        foreign,
        other_key,
        "",
        ".00",
        "00",
        genuine[:-3] + "00",
        genuine.swapcase(),
        genuine + "\0",
        "é" + genuine[1:],
    ]
    assert world.ack(*forged) == [False] * len(forged)
    assert world.nack(*forged) == [False] * len(forged)
    assert world.extend(*forged) == [False] * len(forged)
    assert world.ack(genuine) == [True]


def test_a_receipt_of_a_log_that_was_replaced_settles_nothing() -> None:
    """After a restore other messages may lie where the receipt points; the epoch tells."""
    world = world_with(b"1")
    (receipt,) = receipts(world)
    world.crash()
    chunk = world.partition.read(Offset(0))
    assert chunk is not None
    data, _ = encode_entry(
        1,
        [block.data for block in plain_blocks(KIND_JSON, [b"another"])],
        seed=REPLICA,
        epoch=Epoch(2),
        offset=Offset(0),
        time_ms=1,
        count=1,
    )
    world.partition.state.epochs.append(EpochStart(Epoch(2), Offset(0)))
    _overwrite(world, data)
    assert world.ack(receipt) == [False]
    assert world.take() is not None


def _overwrite(world: World, data: bytes) -> None:
    batch = Batch()
    batch.put(Table.LOG, log_key(REPLICA, 0), data)
    world.engine.commit(batch, lambda: None)


# ------------------------------------------------------------------------------------------- return and extend


def test_a_nack_makes_the_message_free_once_it_is_durable() -> None:
    world = world_with(b"1")
    (receipt,) = receipts(world)
    answers: list[object] = []
    world.main.give_back(by_token([receipt]), 0, None, answers.append)
    world.committer.prepare()
    assert world.take() is None and world.counts == (0, 1, 0)
    world.committer.land()
    assert world.counts == (1, 0, 0) and len(answers) == 1


def test_a_second_nack_finds_nothing() -> None:
    world = world_with(b"1")
    (receipt,) = receipts(world)
    assert world.nack(receipt, receipt) == [True, True]
    assert world.nack(receipt) == [False]


def test_a_delayed_message_comes_when_it_is_due() -> None:
    world = world_with(b"1", b"2")
    first, _ = receipts(world, 2)
    world.nack(first, due_ms=world.now_ms + 500)
    world.pass_time(499)
    assert world.counts == (0, 1, 1) and world.take() is None
    world.pass_time(1)
    assert world.counts == (1, 1, 0)
    assert attempts_by_seq(world.leased()) == {0: 2}


def test_a_delay_outlasts_a_crash_wherever_in_the_backlog_the_message_lies() -> None:
    world = World()
    for number in range(30):
        world.stored(b"%d" % number)
    leases = [world.leased() for _ in range(30)]
    last = next(iter(receipts_by_seq(leases[-1]).values()))
    world.nack(last, due_ms=world.now_ms + 500)
    world.crash()
    assert world.counts == (29, 0, 1)
    assert world.partition.next_wakeup_ms() is not None
    world.pass_time(500)
    assert world.counts == (30, 0, 0)


def test_a_queue_keeps_no_more_delays_than_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "DELAYED_RUNS_MAX", 1)
    world = world_with(b"1", b"2")
    first, second = receipts(world, 2)
    assert world.nack(first, due_ms=world.now_ms + 500) == [True]
    answers: list[object] = []
    world.main.give_back(by_token([second]), world.now_ms + 500, None, answers.append)
    world.commit()
    assert isinstance(answers[0], Overloaded)
    assert world.counts == (0, 1, 1)
    assert world.nack(second) == [True]


def test_extend_moves_the_deadline() -> None:
    world = world_with(b"1")
    (receipt,) = receipts(world)
    world.pass_time(VISIBILITY_MS - 1)
    assert world.extend(receipt, visibility_ms=VISIBILITY_MS) == [True]
    world.pass_time(VISIBILITY_MS - 1)
    assert world.counts == (0, 1, 0)
    world.pass_time(1)
    world.commit()
    assert world.counts == (1, 0, 0)
    assert world.extend(receipt) == [False]


def test_extend_of_some_leaves_the_others_as_they_were() -> None:
    world = world_with(*[b"1"] * 4)
    consumer = Consumer()
    held = receipts_by_seq(world.leased(4, consumer))
    assert world.extend(held[1], held[2], visibility_ms=2 * VISIBILITY_MS) == [True, True]
    world.pass_time(VISIBILITY_MS)
    assert sorted(consumer.lost_receipts) == sorted([held[0], held[3]])
    world.commit()
    assert world.counts == (2, 2, 0)
    assert world.ack(held[1]) == [True]
    world.pass_time(VISIBILITY_MS)
    assert consumer.lost_receipts[2:] == [held[2]]


def test_extend_twice_in_one_millisecond_ends_the_lease_once() -> None:
    world = world_with(b"1")
    consumer = Consumer()
    (receipt,) = receipts(world, 1, consumer)
    for visibility_ms in (500, 900, 500, 500):
        assert world.extend(receipt, visibility_ms=visibility_ms) == [True]
    world.pass_time(500)
    assert consumer.lost_receipts == [receipt] and consumer.released_total == 1


# ---------------------------------------------------------------------------------------------------- holders


def test_a_holder_is_told_when_it_holds_less() -> None:
    world = world_with(*[b"1"] * 5)
    consumer = Consumer()
    held = receipts(world, 5, consumer)
    world.ack(held[0], held[1])
    assert consumer.released_total == 2
    world.nack(held[2])
    assert consumer.released_total == 3
    world.pass_time(VISIBILITY_MS)
    assert consumer.released_total == 5 and consumer.lost_receipts == held[3:]


def test_what_a_holder_leaves_behind_is_free_again_and_counted() -> None:
    world = world_with(b"1", b"2")
    lease = world.leased(2)
    world.ack(receipts_by_seq(lease)[0])
    world.main.give_back_lease(lease)
    world.main.give_back_lease(lease)
    world.commit()
    assert world.counts == (1, 0, 0)
    assert attempts_by_seq(world.leased()) == {1: 2}


def test_what_a_holder_had_not_begun_is_free_again_in_its_order_and_not_counted() -> None:
    world = world_with(b"1", b"2", b"3", b"4")
    lease = world.leased(4)
    lease.untried = 0b1101
    world.ack(receipts_by_seq(lease)[0])
    world.main.give_back_lease(lease)
    world.commit()
    assert attempts_by_seq(world.leased(4)) == {1: 2, 2: 1, 3: 1}


def test_what_nobody_began_with_is_not_dead_after_its_last_attempt() -> None:
    world = World(config=QueueConfig(max_attempts=1))
    world.stored(b"1", b"2")
    lease = world.leased(2)
    lease.untried = 0b10
    world.main.give_back_lease(lease)
    world.commit()
    assert attempts_by_seq(world.leased(2)) == {1: 1}


def test_a_limit_that_was_lowered_judges_the_attempts_that_end_after_it() -> None:
    world = World(config=QueueConfig(max_attempts=5))
    world.stored(b"1", b"2")
    for _ in range(2):
        world.nack(*receipts(world, 2))
    world.view.policy = world.view.policy._replace(max_attempts=1)
    assert not world.view.has_deaths
    first, second = receipts_by_seq(world.leased(2)).items()
    assert world.nack(first[1]) == [True], "it was its last attempt"
    assert world.take() is None and world.ack(second[1]) == [True]
    assert world.partition.state.ended == {"max_attempts": 1} and world.counts == (0, 0, 0)


def test_a_bounded_number_of_receipts_is_remembered_after_their_acks(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is nearly all of the memory that a queue takes which is worked off as it fills."""
    monkeypatch.setattr(work_queue, "SETTLED_TOKENS_MAX", 4)
    world = World()
    acked = []
    for _ in range(10):
        world.stored(b"1")
        acked += receipts(world)
        assert world.ack(acked[-1]) == [True]
    assert [world.ack(receipt) for receipt in acked] == [[False]] * 6 + [[True]] * 4


def test_a_lease_that_ran_out_before_it_was_sent_can_still_be_taken_back() -> None:
    world = world_with(b"1")
    lease = world.leased()
    world.pass_time(VISIBILITY_MS)
    world.main.unsent(lease)
    world.commit()
    assert world.counts == (1, 0, 0)


# ------------------------------------------------------------------------------------------------------- purge


def test_a_purge_drops_what_was_stored_and_answers_how_much() -> None:
    world = world_with(*[b"1"] * 5)
    consumer = Consumer()
    held = receipts(world, 2, consumer)
    lease = consumer.leases[0]
    answers = world.purge()
    world.commit()
    assert answers == [5] and world.counts == (0, 0, 0)
    assert consumer.released_total == 2
    assert world.ack(*held) == [False, False]
    world.main.unsent(lease)
    world.main.give_back_lease(lease)
    world.stored(b"after")
    assert list(bodies_by_seq(world.leased(9)).values()) == [b"after"]
    world.crash()
    assert list(bodies_by_seq(world.leased(9)).values()) == [b"after"]


def test_a_purge_takes_what_is_published_in_the_same_cycle_and_nothing_later() -> None:
    world = World()
    published = world.publish(b"1")
    answers = world.purge()
    world.committer.prepare()
    later = world.publish(b"2")
    world.committer.land()
    assert answers == [1] and len(published) == 1
    world.commit()
    assert len(later) == 1 and list(bodies_by_seq(world.leased(9)).values()) == [b"2"]


def test_a_purge_ends_delays() -> None:
    world = world_with(b"1")
    world.nack(*receipts(world), due_ms=world.now_ms + 500)
    world.purge()
    world.commit()
    world.pass_time(1000)
    assert world.counts == (0, 0, 0) and world.take() is None


# -------------------------------------------------------------------------------------------------- clean stop


def test_a_clean_stop_keeps_leases_parts_and_all() -> None:
    world = world_with(*[b"1"] * 4)
    held = receipts_by_seq(world.leased(4))
    world.extend(held[1], visibility_ms=2 * VISIBILITY_MS)
    restored = world.restart()
    assert world.counts == (0, 4, 0) and world.take() is None
    assert sorted(part.bits for lease in restored for part in [lease]) == [0b0010, 0b1101]
    assert world.ack(held[0]) == [True]
    world.pass_time(VISIBILITY_MS)
    world.commit()
    assert world.counts == (2, 1, 0)
    assert world.ack(held[1]) == [True]


def test_a_chunk_whose_lease_was_kept_is_complete_when_its_turn_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "CHUNKS_LOADED_BYTES_MAX", 100)
    world = World()
    for number in range(5):
        world.stored(b"%d" % number + b" " * 200, b"x")
    for _ in range(5):
        world.take(1)
        world.take(1)
    for receipt in [r for lease in world.view.leases.values() for r in receipts_by_seq(lease).values()][1::2]:
        world.nack(receipt)
    world.restart()
    assert sum(len(bodies_by_seq(world.leased())) for _ in range(5)) == 5
    assert world.take() is None


def test_a_kept_lease_that_is_given_back_is_free_only_when_that_is_durable() -> None:
    world = world_with(b"1")
    world.leased()
    (lease,) = world.restart()
    world.main.give_back_lease(lease)
    assert world.take() is None
    world.commit()
    assert attempts_by_seq(world.leased()) == {0: 2}
