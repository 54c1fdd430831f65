"""Consume, transform, produce in one step: all of it happens with one commit, or nothing."""

from __future__ import annotations

from typing import Any

import pytest

from backend_store.core.leases.leases import Lease
from backend_store.core.leases.leasing import ReceiptKey
from backend_store.core.leases.receipts import by_token
from backend_store.core.log.chunk import KIND_JSON, Draft, blocks_of, plain_blocks
from backend_store.core.log.records import EpochStart, PartitionState
from backend_store.core.log.sublogs import VIEW_DEAD, VIEW_MAIN
from backend_store.model import (
    DedupeFull,
    Epoch,
    Offset,
    Published,
    PushqError,
    QueueConfig,
    QueueDefinition,
    QueueFull,
    QueueNotFound,
    Stamp,
    StorageFull,
)
from backend_store.node.commit.transaction import Transaction, TransactionResult
from backend_store.node.log.apply import read_state
from backend_store.node.partition import Partition
from backend_store.node.partitions import Partitions
from backend_store.node.views.acks import Acks
from backend_store.node.views.factory import core_of
from backend_store.service.held_leases import _free
from tests.support.queues import counts, crashed, draft, drained, publish, queue, receipts, settle, took
from tests.support.world import REPLICA, SECRET, Consumer, World, partitions_of

OTHER = 8


def begun(**settings: object) -> tuple[World, list[str]]:
    """A queue whose message `in` somebody holds, and the receipt."""
    world = queue(**settings)
    publish(world, draft("in"))
    lease = took(world)
    world.settle_down()
    return world, receipts(lease)


def beside(world: World, **settings: Any) -> Partitions:
    """Another queue of the same node."""
    config = QueueConfig(**settings)
    key = ReceiptKey(SECRET, 0, OTHER, 0)
    state = read_state(world.engine, OTHER) or PartitionState([EpochStart(Epoch(1), Offset(0))])
    partition = Partition(
        world,  # type: ignore[arg-type]
        replica=OTHER,
        label="other",
        state=state,
        config=config,
        make_core=lambda config, view, at, group=None: core_of(config, view, at, key, world.now_ms << 20, group),
    )
    partition.recover(world.now_ms)
    definition = QueueDefinition(uid=OTHER, tenant="default", name="other", config=config, created_at_ms=0, version=1)
    return Partitions(definition, partition)


def ask_both(
    world: World, given: list[str], other: Partitions, *outputs: Draft
) -> list[TransactionResult | PushqError]:
    """A step with a publish of its own for each output."""
    answers: list[TransactionResult | PushqError] = []
    publishes = [(other, blocks_of([output]).blocks) for output in outputs]
    world.partition.settle_and_publish(Transaction([(world.main, by_token(given))], publishes, answers.append))
    return answers


def ask(world: World, given: list[str], *drafts: Draft) -> list[TransactionResult | PushqError]:
    answers: list[TransactionResult | PushqError] = []
    publishes = [(partitions_of(world), blocks_of(drafts).blocks)] if drafts else []
    world.partition.settle_and_publish(Transaction([(world.main, by_token(given))], publishes, answers.append))
    return answers


def result(answers: list[Any]) -> TransactionResult:
    (answer,) = answers
    assert isinstance(answer, TransactionResult), answer
    return answer


def test_what_was_taken_goes_and_what_was_made_of_it_comes() -> None:
    world, given = begun()
    answers = ask(world, given, draft("out"), draft("out too"))
    assert answers == []
    world.commit()
    made = result(answers)
    assert sum(bits.bit_count() for bits in made.settled.values()) == 1
    assert made.places == [Published(0, Offset(1), 2)]
    assert drained(world) == ["out", "out too"] and world.partition.state.acked_total == 3


def lease_ends(world: World, lease: Lease, how: str) -> None:
    if how == "left":
        world.main.give_back_lease(lease)
    elif how == "gateway gone":
        _free(world.main, lease, lease.bits, is_unsent=False)
    else:
        world.pass_time(30_000)


@pytest.mark.parametrize("how", ["left", "ran out", "gateway gone"])
@pytest.mark.parametrize("settings", [{}, {"delivery": "exactly_once"}, {"ordering": "strict"}])
def test_a_step_that_waits_for_its_commit_counts_though_its_lease_ends_meanwhile(settings: Any, how: str) -> None:
    """The consumer goes right behind it, or the disk stands still: it was a dead letter, and nothing was published."""
    world = queue(max_attempts=1, **settings)
    other = beside(world)
    publish(world, draft("a"), draft("b"))
    lease = took(world)
    world.settle_down()
    assert lease is not None
    first, _ = receipts(lease)
    answers = ask_both(world, [first], other, draft("out"))
    lease_ends(world, lease, how)
    assert lease.bits.bit_count() == 2, "all that the step does has its place in one cycle"
    world.settle_down()
    assert sum(bits.bit_count() for bits in result(answers).settled.values()) == 1
    assert world.partition.state.acked_total == 1 and not lease.bits
    assert drained(world, view=VIEW_DEAD) == ["b"]


def test_a_nack_behind_a_step_is_decided_behind_it_though_another_lease_ends() -> None:
    """Who unsubscribes gives one message of each lease back once more, to hear when all are free."""
    world = queue()
    publish(world, draft("a"), draft("b"), draft("c"))
    lease, another = took(world, 2), took(world)
    assert lease is not None and another is not None
    first, second = receipts(lease)
    answers = ask(world, [first], draft("out"))
    returned: list[Any] = []
    world.main.give_back(by_token([first]), None, None, returned.append)
    world.main.give_back(by_token(receipts(another)), None, None, returned.append)
    world.main.give_back_lease(another)
    world.settle_down()
    assert sum(bits.bit_count() for bits in result(answers).settled.values()) == 1
    assert [len(one) for one in returned] == [1, 0], "the other one waits for nothing"
    assert settle(world, [second]) == [True]


def test_the_end_of_a_lease_looks_at_steps_that_settle_of_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a disk stands still hundreds of steps may wait, and the leases of thousands of consumers end at once."""
    looks: list[Lease] = []
    settles = Transaction.settles

    def counted(step: Transaction, view: Acks, lease: Lease) -> bool:
        looks.append(lease)
        return settles(step, view, lease)

    monkeypatch.setattr(Transaction, "settles", counted)
    world = queue()
    publish(world, *(draft(str(number)) for number in range(20)))
    leases = [took(world, 1) for _ in range(20)]
    world.settle_down()
    answers = [ask(world, receipts(lease)) for lease in leases[:10]]
    world.pass_time(30_000)
    assert looks == leases[:10]
    world.settle_down()
    assert all(result(one).settled for one in answers)


def test_a_lease_that_gets_more_time_while_a_step_waits_goes_on() -> None:
    world = queue()
    publish(world, draft("a"), draft("b"))
    lease = took(world)
    assert lease is not None
    first, second = receipts(lease)
    ask(world, [first], draft("out"))
    world.pass_time(30_000)
    world.main.extend(by_token([second]), 60_000, lambda _: None)
    world.settle_down()
    assert counts(world) == (1, 1, 0)
    world.pass_time(59_000)
    assert settle(world, [second]) == [True]


@pytest.mark.parametrize("landed", [False, True])
def test_a_crash_leaves_the_one_or_the_other(landed: bool) -> None:
    world, given = begun()
    ask(world, given, draft("out"))
    world.committer.prepare()
    crashed(world, landed=landed)
    assert drained(world) == (["out"] if landed else ["in"])


@pytest.mark.parametrize("waiting", [0, 1, 5])
def test_a_step_of_two_queues_is_whole_however_much_waits_in_the_cycle(waiting: int) -> None:
    world, given = begun()
    other = beside(world)
    for _ in range(waiting):
        other.publish(plain_blocks(KIND_JSON, [b"1"] * 1000), lambda _: None)
    world.committer.is_shared = True
    answers = ask_both(world, given, other, draft("out"))
    world.committer.prepare()
    world.committer.reach_the_disk()
    source, target = read_state(world.engine, REPLICA), read_state(world.engine, OTHER)
    assert source is not None and target is not None and answers == []
    assert (source.live, target.live % 1000) == (0, 1)


@pytest.mark.parametrize(
    ("settings", "before", "outputs"),
    [
        ({"max_messages": 2}, 1, 2),
        ({"max_bytes": 300}, 0, 8),
        ({"sequencing": "producer", "sort_held_messages_max": 1, "sort_window_ms": 60_000}, 1, 1),
        ({"sequencing": "clock", "sort_held_messages_max": 2, "sort_window_ms": 60_000}, 1, 2),
    ],
)
def test_what_the_other_queue_would_refuse_is_refused_before_anything_is_settled(
    settings: dict[str, Any], before: int, outputs: int
) -> None:
    world, given = begun()
    other = beside(world, **settings)
    made = [draft("out", stamp=Stamp(world.now_ms * 1000, "p", 3 + 2 * n)) for n in range(before + outputs)]
    other.publish(blocks_of(made[:before]).blocks, lambda _: None) if before else None
    world.settle_down()
    for _ in range(2):
        answers = ask_both(world, given, other, *made[before:])
        world.settle_down()
        (answer,) = answers
        assert isinstance(answer, PushqError), "told once, and never as done"
    assert other.first.state.live == before
    assert counts(world) == (0, 1, 0) and settle(world, given) == [True]


def test_a_step_whose_ids_find_no_room_settles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    world, given = begun()
    other = beside(world, dedupe="id")
    monkeypatch.setattr(other.first.ids, "has_room", lambda _: False)
    answers = ask_both(world, given, other, draft("out", id="x"))
    world.settle_down()
    assert isinstance(answers[0], DedupeFull) and settle(world, given) == [True]


def test_two_steps_of_a_cycle_are_promised_the_same_room_once() -> None:
    world = queue()
    publish(world, draft("a"), draft("b"))
    first, second = receipts(took(world))
    other = beside(world, max_messages=1)
    answers = [ask_both(world, [one], other, draft("out")) for one in (first, second)]
    world.settle_down()
    assert [type(one) for (one,) in answers] == [TransactionResult, QueueFull]
    assert other.first.state.live == 1 and settle(world, [first, second]) == [True, True]


def test_a_lost_lease_publishes_nothing() -> None:
    world, given = begun()
    world.pass_time(30_000)
    answers = ask(world, given, draft("out"))
    world.settle_down()
    assert result(answers) == TransactionResult({}) and drained(world) == ["in"]


def test_one_stale_receipt_among_good_ones_stops_the_whole_step() -> None:
    world = queue()
    publish(world, draft("a"), draft("b"))
    first, second = receipts(took(world))
    settle(world, [first])
    answers = ask(world, [first, second], draft("out"))
    world.settle_down()
    assert result(answers) == TransactionResult({}) and counts(world) == (0, 1, 0)
    assert settle(world, [second]) == [True]


def test_the_same_step_again_is_answered_as_done_and_not_done_twice() -> None:
    world, given = begun()
    ask(world, given, draft("out"))
    world.commit()
    again = ask(world, given, draft("out"))
    world.settle_down()
    assert sum(result(again).settled.values()) == 1 and result(again).places == []
    assert drained(world) == ["out"]


def test_two_steps_with_one_receipt_in_one_commit_publish_once() -> None:
    world, given = begun()
    answers = [ask(world, given, draft("out")) for _ in range(2)]
    world.settle_down()
    assert drained(world) == ["out"]
    assert sorted(len(result(one).places) for one in answers) == [0, 1]


def test_nobody_is_told_that_a_step_is_done_before_it_is_durable() -> None:
    world, given = begun()
    both = [ask(world, given, draft("out")) for _ in range(2)]
    world.committer.prepare()
    assert both == [[], []]
    crashed(world)
    assert drained(world) == ["in"]


def test_an_ack_and_a_step_in_one_commit_do_not_both_happen() -> None:
    world, given = begun()
    acked: list[object] = []
    world.main.settle(by_token(given), acked.append)
    answers = ask(world, given, draft("out"))
    world.settle_down()
    assert result(answers).places == [] and drained(world) == [] and len(acked) == 1


def test_an_ack_that_came_first_leaves_nothing_to_the_step() -> None:
    world, given = begun()
    settle(world, given)
    answers = ask(world, given, draft("out"))
    world.settle_down()
    assert result(answers).places == [] and drained(world) == []


def test_a_step_that_comes_while_another_one_is_decided_is_decided_with_the_next_commit() -> None:
    world, given = begun(max_messages=1)
    later: list[TransactionResult | PushqError] = []

    def refused(error: TransactionResult | PushqError) -> None:
        world.partition.settle_and_publish(Transaction([(world.main, by_token(given))], [], later.append))

    step = Transaction(
        [(world.main, by_token(given))], [(partitions_of(world), blocks_of([draft("out")]).blocks)], refused
    )
    world.partition.settle_and_publish(step)
    world.commit()
    assert later == [] and world.committer.is_asked
    world.commit()
    assert sum(result(later).settled.values()) == 1


def test_without_room_for_what_was_made_nothing_is_settled() -> None:
    world, given = begun(max_messages=1)
    answers = ask(world, given, draft("out"), draft("out too"))
    world.commit()
    assert isinstance(answers[0], QueueFull)
    assert counts(world) == (0, 1, 0) and settle(world, given) == [True]


def test_a_full_disk_refuses_the_step_and_keeps_the_lease() -> None:
    world, given = begun()
    world.allowed = False
    answers = ask(world, given, draft("out"))
    world.commit()
    assert isinstance(answers[0], StorageFull) and settle(world, given) == [True]


def test_a_step_without_anything_to_publish_is_an_ack() -> None:
    world, given = begun()
    answers = ask(world, given)
    world.commit()
    assert sum(result(answers).settled.values()) == 1 and counts(world) == (0, 0, 0)


def test_steps_that_wait_when_the_queue_is_deleted_are_told() -> None:
    world, given = begun()
    answers = ask(world, given, draft("out"))
    world.partition.close()
    assert [type(one) for one in answers + ask(world, given)] == [QueueNotFound, QueueNotFound]


def of_two(world: World) -> tuple[Partition, Lease, Lease, list[TransactionResult | PushqError]]:
    """A step that waits for its commit and settles one of two messages that are held of each of two partitions: the
    other partition, what is held of both, and the answers."""
    other = beside(world).first
    publish(world, draft("a"), draft("b"))
    other.publish(blocks_of([draft("c"), draft("d")]).blocks, lambda _: None)
    world.settle_down()
    mine, theirs = took(world), other.view(VIEW_MAIN).take(64, Consumer(), 30_000)
    world.settle_down()
    assert mine is not None and theirs is not None
    answers: list[TransactionResult | PushqError] = []
    acks = [
        (world.main, by_token(receipts(mine)[:1])),
        (other.view(VIEW_MAIN), by_token(receipts(theirs)[:1])),
    ]
    world.partition.settle_and_publish(Transaction(acks, [], answers.append))
    return other, mine, theirs, answers


def test_a_step_settles_nothing_where_a_partition_that_it_settles_of_goes_before_its_commit() -> None:
    """That one forgot the step, and the commit cycle of all failed where it was decided."""
    world = queue()
    other, mine, _, answers = of_two(world)
    other.close()
    world.settle_down()
    assert result(answers) == TransactionResult({})
    world.main.give_back_lease(mine)
    assert not mine.bits, "it waits for no step"


@pytest.mark.parametrize("is_before", [True, False])
def test_leases_that_a_step_settles_of_end_though_its_own_partition_goes(is_before: bool) -> None:
    """They came behind a step that nobody decides, and what they held was never free again."""
    world = queue()
    other, _, theirs, answers = of_two(world)
    view = other.view(VIEW_MAIN)
    if is_before:
        view.give_back_lease(theirs)
        assert theirs.bits
    world.partition.close()
    if not is_before:
        view.give_back_lease(theirs)
    assert [type(one) for one in answers] == [QueueNotFound]
    assert not theirs.bits


# ------------------------------------------------------------------------------------------------------ full queues


@pytest.mark.parametrize("overflow", ["reject", "drop_oldest", "dead_letter_oldest"])
def test_a_full_queue_takes_as_many_as_the_step_settles_of_it_and_ends_none(overflow: str) -> None:
    world = queue(max_messages=3, overflow=overflow)
    publish(world, draft("in"), draft("b"), draft("c"))
    given = receipts(took(world, 1))
    answers = ask(world, given, draft("out"))
    world.commit()
    assert result(answers).settled and world.partition.state.ended == {}
    assert drained(world) == ["b", "c", "out"]


@pytest.mark.parametrize("overflow", ["reject", "drop_oldest", "dead_letter_oldest"])
def test_a_step_that_a_full_queue_has_no_room_for_is_refused_whole(overflow: str) -> None:
    world = queue(max_messages=3, overflow=overflow)
    publish(world, draft("in"), draft("b"), draft("c"))
    given = receipts(took(world, 1))
    took(world)
    answers = ask(world, given, draft("out"), draft("too"))
    world.settle_down()
    (refused,) = answers
    assert isinstance(refused, QueueFull) and counts(world) == (0, 3, 0) and world.partition.state.ended == {}


def test_a_step_into_a_full_queue_ends_its_oldest_for_it() -> None:
    world = queue(max_messages=3, overflow="drop_oldest")
    publish(world, draft("in"), draft("b"), draft("c"))
    given = receipts(took(world, 1))
    answers = ask(world, given, draft("out"), draft("too"))
    world.commit()
    assert result(answers).settled and drained(world) == ["c", "out", "too"]


def test_of_a_step_what_a_full_queue_has_no_room_for_is_a_dead_letter_where_it_says_so() -> None:
    world = queue(max_messages=3, overflow="dead_letter_newest")
    publish(world, draft("in"), draft("b"), draft("c"))
    given = receipts(took(world, 1))
    answers = ask(world, given, draft("out"), draft("too"))
    world.commit()
    assert result(answers).settled and counts(world) == (3, 0, 0)
    assert drained(world) == ["b", "c", "out"] and drained(world, view=VIEW_DEAD) == ["too"]
