"""Receipts on their way back: what was not tried is no attempt, and nobody's receipts keep the others waiting."""

from __future__ import annotations

from typing import Any

import pytest

from backend_store.core.leases import leasing
from backend_store.core.leases.leases import Lease
from backend_store.core.leases.receipts import by_token, claimed_fields, make_token, read_token
from backend_store.core.log.sublogs import VIEW_DEAD
from backend_store.node.commit.transaction import Transaction
from backend_store.node.limits import STRANGE_RECEIPTS_PER_CYCLE
from backend_store.node.views import acks
from backend_store.storage.engine import Table
from tests.support.queues import (
    ack,
    counts,
    crashed,
    draft,
    drained,
    nack,
    publish,
    queue,
    receipts,
    rows,
    texts,
    time_passes,
    took,
)
from tests.support.streams import all_receipts, stream
from tests.support.world import Consumer, World, attempts_by_seq, verdicts


def untried(world: World, given: list[str], *, due_ms: int | None = None) -> list[bool]:
    """Gives messages back that nobody began with."""
    answers: list[Any] = []
    world.main.give_back(by_token(given), due_ms, None, answers.append, tried=False)
    while not answers:
        world.commit()
    return verdicts(given, answers[0])


def attempts(lease: Lease | None) -> list[int]:
    assert lease is not None
    return [*attempts_by_seq(lease).values()]


# ------------------------------------------------------------------------------------ before its lease has ended


def lease_ends(world: World, lease: Lease, how: str) -> None:
    if how == "left":
        world.main.give_back_lease(lease)
    else:
        world.pass_time(30_000)


@pytest.mark.parametrize("how", ["left", "ran out"])
def test_an_ack_that_waits_for_its_commit_counts_though_its_lease_ends_meanwhile(how: str) -> None:
    """The consumer goes right behind its ack, or the disk stands still: it was no dead letter for that."""
    world = queue(max_attempts=1)
    publish(world, draft("a"), draft("b"))
    lease = took(world)
    assert lease is not None
    first, _ = receipts(lease)
    answers: list[Any] = []
    world.main.settle(by_token([first]), answers.append)
    lease_ends(world, lease, how)
    world.settle_down()
    assert verdicts([first], answers[0]) == [True]
    assert world.partition.state.acked_total == 1
    assert drained(world, view=VIEW_DEAD) == ["b"]


@pytest.mark.parametrize("how", ["left", "ran out"])
def test_a_nack_that_waits_for_its_commit_has_its_delay_though_its_lease_ends_meanwhile(how: str) -> None:
    world = queue()
    publish(world, draft("a"))
    lease = took(world)
    assert lease is not None
    answers: list[Any] = []
    due_ms = world.now_ms + 60_000
    world.main.give_back(by_token(receipts(lease)), due_ms, None, answers.append)
    lease_ends(world, lease, how)
    world.settle_down()
    assert answers[0]
    assert took(world) is None, "it waits for its time"
    time_passes(world, 60_000)
    assert texts(took(world)) == ["a"]


def test_an_ack_that_was_decided_before_its_commit_still_waits_for_it() -> None:
    """A partition that was to go went before it was answered: it was taken for quiet."""
    world = queue()
    publish(world, draft("a"))
    lease = took(world)
    assert lease is not None
    given = receipts(lease)
    assert ack(world, lease) == [True]
    answers: list[Any] = []
    world.main.settle(by_token(given), answers.append)  # for the second time
    world.main.give_back_lease(lease)
    assert not world.partition.is_quiet
    world.settle_down()
    assert verdicts(given, answers[0]) == [True]
    assert world.partition.is_quiet


# --------------------------------------------------------------------------------------------------- not tried


def test_what_nobody_tried_is_no_attempt() -> None:
    world = queue()
    publish(world, draft("a"), draft("b"))
    first, second = receipts(took(world))
    assert untried(world, [second]) == [True]
    again = took(world)
    assert texts(again) == ["b"] and attempts(again) == [1]
    nack(world, again)
    assert untried(world, receipts(took(world))) == [True]
    assert attempts(took(world)) == [2]
    assert untried(world, [second, first]) == [False, True]


def test_what_nobody_tried_does_not_die_of_it() -> None:
    world = queue(max_attempts=1)
    publish(world, draft("a"))
    for _ in range(3):
        assert untried(world, receipts(took(world))) == [True]
    assert counts(world) == (1, 0, 0) and counts(world, VIEW_DEAD) == (0, 0, 0)
    nack(world, took(world))
    assert counts(world, VIEW_DEAD) == (1, 0, 0)


def test_what_nobody_tried_waits_for_no_back_off_but_for_a_delay_that_is_named() -> None:
    world = queue(retry_backoff_ms=5_000)
    publish(world, draft("a"))
    untried(world, receipts(took(world)))
    assert counts(world) == (1, 0, 0)
    untried(world, receipts(took(world)), due_ms=world.now_ms + 100)
    assert counts(world) == (0, 0, 1)
    time_passes(world, 100)
    assert attempts(took(world)) == [1]


def test_what_nobody_tried_leaves_no_trace_on_the_disk() -> None:
    world = queue(lease_mode="replicated")
    publish(world, draft("a"))
    lease = took(world)
    world.settle_down()
    untried(world, receipts(lease))
    assert rows(world, Table.LEASES, Table.RETRY) == 0
    crashed(world)
    again = took(world)
    assert texts(again) == ["a"] and attempts(again) == [1]


@pytest.mark.parametrize("due_in_ms", [0, 500])
def test_of_a_key_in_strict_order_only_the_message_that_failed_has_an_attempt_more(due_in_ms: int) -> None:
    world = queue(ordering="strict")
    publish(world, *(draft(body, key="k") for body in "abc"), draft("other", key="l"))
    lease = took(world)
    world.settle_down()
    first, *behind, _ = receipts(lease)
    answers: list[Any] = []
    world.main.give_back(by_token([first]), due_in_ms and world.now_ms + due_in_ms, "no", answers.append)
    world.main.give_back(by_token(behind), None, None, answers.append, tried=False)
    world.settle_down()
    if due_in_ms:
        assert took(world) is None, "the key waits for its first message"
        time_passes(world, due_in_ms)
    again = took(world)
    assert texts(again) == ["a", "b", "c"] and attempts(again) == [2, 1, 1]


def test_a_poison_message_takes_nobody_along_that_waits_behind_it() -> None:
    world = queue(ordering="strict", max_attempts=3)
    publish(world, *(draft(body, key="k") for body in ("poison", "b", "c")))
    while texts(lease := took(world))[:1] == ["poison"]:
        world.settle_down()
        first, *behind = receipts(lease)
        world.main.give_back(by_token([first]), 0, None, lambda done: None)
        untried(world, behind)
    assert counts(world, VIEW_DEAD) == (1, 0, 0)
    assert ack(world, lease) == [True, True] and drained(world, view=VIEW_DEAD) == ["poison"]


def test_with_offsets_what_nobody_tried_is_no_attempt() -> None:
    world = stream()
    group, consumer = world.group(), Consumer()
    group.drained(consumer)
    given = all_receipts(consumer)[2]
    answers: list[Any] = []
    world.ask([given], lambda view, own, reply: view.give_back(own, None, None, reply, tried=False), answers.append)
    world.settle_down()
    group.give_back(consumer)
    again = Consumer()
    group.drained(again)
    tries = {seq: tries for lease in again.leases for seq, tries in attempts_by_seq(lease).items()}
    assert tries[2] == 1


# ------------------------------------------------------------------------------------- receipts of another process


def strange(count: int) -> tuple[World, list[str]]:
    """Receipts from before a crash, each of a chunk of its own."""
    world, given = World(), list[str]()
    for number in range(count):
        world.stored(b"%d" % number)
    while (lease := took(world)) is not None:
        given += receipts(lease)
    world.settle_down()
    world.crash()
    return world, given


def test_receipts_from_before_a_restart_are_read_a_bounded_number_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    world, given = strange(2 * STRANGE_RECEIPTS_PER_CYCLE + 1)
    reads = 0
    find = world.main.find

    def counting(shelf: int, base: int) -> Any:
        nonlocal reads
        reads += 1
        return find(shelf, base)

    monkeypatch.setattr(world.main, "find", counting)
    answers: list[Any] = []
    world.main.settle(by_token(given), answers.append)
    for commits in range(1, 4):
        before = reads
        world.commit()
        assert reads - before <= STRANGE_RECEIPTS_PER_CYCLE and bool(answers) == (commits == 3)
    assert verdicts(given, answers[0]) == [True] * len(given) and counts(world) == (0, 0, 0)


def test_who_acks_many_old_receipts_keeps_nobody_waiting_whose_receipts_are_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(acks, "STRANGE_RECEIPTS_PER_CYCLE", 2)
    world, given = strange(11)
    many: list[Any] = []
    few: list[Any] = []
    one: list[Any] = []
    (known,) = receipts(took(world, 1))
    for asked, answers in ((given[1:9], many), (given[9:], few), ([known], one)):
        world.main.settle(by_token(asked), answers.append)
    world.commit()
    assert one and verdicts([known], one[0]) == [True] and not (few or many)
    world.commit()
    assert few and verdicts(given[9:], few[0]) == [True] * 2 and not many
    world.settle_down()
    assert verdicts(given[1:9], many[0]) == [True] * 8


@pytest.mark.parametrize("asked", [[(0, 1)], [(1, 0)], [(0,), (1,)], [(1,), (0,)], [(0, 1), (1, 0)]])
def test_of_old_receipts_of_a_message_that_nobody_holds_exactly_one_acks(asked: list[tuple[int, ...]]) -> None:
    """One from before a crash, one of a known lease that gave the message back: in any order, together or not."""
    world = queue()
    publish(world, draft("a"), draft("b"))
    old = receipts(took(world))[0]
    world.settle_down()
    world.crash()
    young = receipts(took(world))[0]
    assert world.nack(young) == [True]
    given = (old, young)
    answers: list[list[Any]] = [[] for _ in asked]
    for picks, heard in zip(asked, answers, strict=True):
        world.main.settle(by_token([given[n] for n in picks]), heard.append)
    world.settle_down()
    won = {
        given[n]
        for picks, (done,) in zip(asked, answers, strict=True)
        for n, ok in zip(picks, verdicts([given[n] for n in picks], done), strict=True)
        if ok
    }
    assert len(won) == 1 and counts(world) == (0, 1, 0)
    assert world.ack(*won) == [True] and world.ack(*({*given} - won)) == [False]


# ------------------------------------------------------------------------------------------------------ forged ones


def forged(genuine: str, count: int, *, of_this_view: bool = True, known_chunk: bool) -> list[str]:
    """Receipts with the fields of a genuine one, another lease each, and a MAC of a key that is not ours."""
    fields = claimed_fields(genuine[:-2])
    assert fields is not None
    fields = fields._replace(
        base=fields.base if known_chunk else fields.base + 10_000,
        queue_uid=fields.queue_uid if of_this_view else fields.queue_uid + 1,
    )
    return [make_token(b"not our key", fields._replace(lease=1000 + number)) + "00" for number in range(count)]


@pytest.mark.parametrize("known_chunk", [True, False])
def test_forged_receipts_cost_one_proof_each_and_a_bounded_number_a_commit(
    monkeypatch: pytest.MonkeyPatch, known_chunk: bool
) -> None:
    world = World()
    world.stored(b"hello")
    lease = took(world)
    (genuine,) = receipts(lease)
    burst = forged(genuine, 3 * STRANGE_RECEIPTS_PER_CYCLE, known_chunk=known_chunk)
    proofs = 0

    def counting(key: bytes, token: str) -> Any:
        nonlocal proofs
        proofs += 1
        return read_token(key, token)

    monkeypatch.setattr(leasing, "read_token", counting)
    answers: list[Any] = []
    world.main.settle(by_token(burst), answers.append)
    while not answers:
        before = proofs
        world.commit()
        assert proofs - before <= STRANGE_RECEIPTS_PER_CYCLE
    assert proofs == len(burst)
    assert verdicts(burst, answers[0]) == [False] * len(burst) and ack(world, lease) == [True]


def test_receipts_of_another_queue_are_refused_without_a_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.stored(b"hello")
    (genuine,) = receipts(took(world))
    moved = forged(genuine, 10, of_this_view=False, known_chunk=True)
    monkeypatch.setattr(leasing, "read_token", lambda key, token: pytest.fail("a proof was checked"))
    answers: list[Any] = []
    world.main.settle(by_token(moved), answers.append)
    world.settle_down()
    assert verdicts(moved, answers[0]) == [False] * 10


def test_a_step_with_forged_receipts_checks_none_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.stored(b"hello")
    (genuine,) = receipts(took(world))
    monkeypatch.setattr(leasing, "read_token", lambda key, token: pytest.fail("a proof was checked"))
    answers: list[Any] = []
    burst = by_token([genuine, *forged(genuine, 10, known_chunk=False)])
    world.partition.settle_and_publish(Transaction([(world.main, burst)], [], answers.append))
    world.settle_down()
    assert answers[0].settled == {} and counts(world) == (0, 1, 0)


def test_a_deleted_queue_answers_those_whose_old_receipts_still_wait() -> None:
    world, given = strange(STRANGE_RECEIPTS_PER_CYCLE + 1)
    answers: list[Any] = []
    world.main.settle(by_token(given), answers.append)
    world.commit()
    assert not answers and world.main.awaits_decisions
    assert len(world.main.take_waiting()) == 1
