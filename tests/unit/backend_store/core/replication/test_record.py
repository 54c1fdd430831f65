"""The partition's record: who may be elected, and what may change it."""

from __future__ import annotations

import pytest

from backend_store.core.replication import controller
from backend_store.core.replication.record import (
    ControllerIs,
    DiskId,
    Identity,
    Incarnation,
    NodeId,
    NodeIs,
    change,
    dropped,
    first_record,
    handed_over,
    joined,
    may_apply,
    resigned,
)
from backend_store.model import Epoch, Offset
from tests.support.replicas import A, B, C, changed, disk_of, record_of


def _session(node: NodeId, inc: int = 1, disk: DiskId | None = None) -> Identity:
    return Identity(node, Incarnation(inc), disk or disk_of(node))


def _sessions(*nodes: NodeId) -> dict[NodeId, Identity]:
    return {node: _session(node) for node in nodes}


def test_all_replicas_of_a_new_partition_are_in_sync() -> None:
    record = first_record(0, {A: disk_of(A), B: disk_of(B)}, min_in_sync=2)
    assert record.isr == (A, B) and record.leader is None and not record.is_short


def test_minimum_beyond_the_replicas_is_refused_with_the_range() -> None:
    with pytest.raises(ValueError, match="min_in_sync is 3 of 2 replicas; choose 1 to 2"):
        first_record(0, {A: disk_of(A), B: disk_of(B)}, min_in_sync=3)


def test_member_dropped_while_enough_are_left_has_no_claim() -> None:
    assert dropped(record_of(A, B, C), C).elr == ()


def test_member_dropped_below_the_minimum_stays_eligible() -> None:
    assert dropped(dropped(record_of(A, B, C), C), B).elr == (B,)


def test_those_without_whom_the_log_goes_on_are_eligible_no_more() -> None:
    short = changed(record_of(A, B, C), isr=(A,), elr=(B,))
    assert joined(short, C, disk_of(C)).elr == ()


def test_leader_is_elected_from_those_in_sync_in_a_new_epoch() -> None:
    change = controller.decide(record_of(A, B, C), _sessions(B, C), term=1)
    assert change is not None
    after = change.record
    assert (after.leader, after.leader_inc, after.epoch, after.isr) == (B, 1, 2, (B, C))
    assert after.elr == (), "two are enough to go on without the third"
    assert set(change.guards) == {ControllerIs(1), NodeIs(B, Incarnation(1))}


def test_first_leader_has_no_lease_to_wait_out_and_the_next_one_has() -> None:
    first = controller.decide(first_record(0, {A: disk_of(A), B: disk_of(B)}, min_in_sync=1), _sessions(A, B), term=1)
    assert first is not None and (first.record.leader, first.record.epoch, first.record.is_released) == (A, 1, True)
    second = controller.decide(first.record, _sessions(B), term=1)
    assert second is not None and (second.record.leader, second.record.is_released) == (B, False)


def test_last_replica_standing_leads_and_the_others_stay_eligible() -> None:
    """Nobody of those in sync is forgotten when all but one die: the one may die as well (KIP-966)."""
    change = controller.decide(record_of(A, B, C), _sessions(C), term=1)
    assert change is not None and change.record.isr == (C,) and set(change.record.elr) == {A, B}


def test_eligible_one_leads_when_nobody_in_sync_lives() -> None:
    short = changed(record_of(A, B, C), isr=(A,), elr=(B,))
    change = controller.decide(short, _sessions(B, C), term=1)
    assert change is not None
    assert change.record.leader == B and change.record.isr == (B,) and change.record.elr == (A,)


def test_nobody_is_elected_who_may_lack_what_is_committed() -> None:
    short = changed(record_of(A, B, C), isr=(A,), elr=(B,))
    assert controller.decide(short, _sessions(C), term=1) is None
    unclean = controller.decide(short, _sessions(C), term=1, unclean=True)
    assert unclean is not None and unclean.record.leader == C and unclean.record.isr == (C,)


def test_leader_that_lives_stays() -> None:
    assert controller.decide(record_of(A, B), _sessions(A, B), term=1) is None


def test_restarted_leader_is_not_silently_leader_again() -> None:
    sessions = {A: _session(A, inc=2), B: _session(B)}
    change = controller.decide(record_of(A, B), sessions, term=1)
    assert change is not None and change.record.epoch == 2


def test_node_with_a_replaced_or_restored_disk_is_no_member_any_more() -> None:
    """A disk that was empty, or came from a backup, holds nothing of what it was counted for."""
    sessions = {A: _session(A), B: _session(B, inc=2, disk=DiskId("another")), C: _session(C)}
    change = controller.decide(record_of(A, B, C), sessions, term=1)
    assert change is not None
    assert change.record.isr == (A, C) and change.record.elr == () and B not in change.record.disks
    assert NodeIs(B, Incarnation(2)) in change.guards


def test_node_whose_disk_was_replaced_is_not_elected_by_the_session_of_its_new_life() -> None:
    short = changed(record_of(A, B), isr=(B,))
    change = controller.decide(short, {B: _session(B, inc=2, disk=DiskId("another"))}, term=1)
    assert change is not None and change.record.isr == () and change.record.epoch == 1


def test_registration_of_a_life_that_is_over_is_refused() -> None:
    known = _session(A, inc=3)
    assert controller.is_stale(known, _session(A, inc=2))
    assert controller.is_stale(known, _session(A, inc=3))
    assert not controller.is_stale(known, _session(A, inc=4))
    assert not controller.is_stale(None, _session(A, inc=1))


def test_change_of_an_older_version_or_without_its_guards_is_refused() -> None:
    record = record_of(A, B, C)
    asked = change(dropped(record, C), NodeIs(A, Incarnation(1)), id="1")
    assert may_apply(asked, record, lambda guard: True)
    assert not may_apply(asked, record, lambda guard: False)
    assert not may_apply(asked, asked.record, lambda guard: True)


def test_resigned_leader_is_elected_last_and_leaves_no_lease_to_wait_out() -> None:
    change = controller.decide(changed(resigned(record_of(A, B))), _sessions(A, B), term=1)
    assert change is not None and change.record.leader == B and change.record.is_released


def test_only_one_in_sync_that_resigned_is_elected_after_those_that_have_the_same() -> None:
    """It reached the coordinator and none of them; nothing was committed without those who are eligible."""
    record = changed(resigned(record_of(A, B, C, isr=(A,), elr=(B,))))
    change = controller.decide(record, _sessions(A, B, C), term=1)
    assert change is not None and change.record.leader == B
    assert (change.record.isr, change.record.elr) == ((B,), (A,))
    alone = controller.decide(record, _sessions(A, C), term=1)
    assert alone is not None and alone.record.leader == A, "c may lack something"


def test_handover_is_a_new_epoch_with_the_same_members() -> None:
    after = handed_over(record_of(A, B), B, Incarnation(1))
    assert (after.epoch, after.leader, after.isr, after.is_released) == (2, B, (A, B), True)


def test_record_that_is_older_than_the_logs_is_led_beyond_them_by_the_longest() -> None:
    """The coordinator was put back from a copy: no replica obeys an epoch below its log's, and none was elected.
    Who is in sync the record does not say any more."""
    record, sessions = record_of(A, B, C), _sessions(A, B, C)
    logs = {A: (Epoch(4), Offset(9)), B: (Epoch(5), Offset(7)), C: (Epoch(5), Offset(8))}
    assert controller.decide(record, sessions, term=1, logs=dict.fromkeys(logs, (record.epoch, Offset(1)))) is None
    change = controller.decide(record, sessions, term=1, logs=logs)
    assert change is not None
    assert (change.record.epoch, change.record.leader, change.record.isr, change.record.elr) == (6, C, (C,), ())
    assert NodeIs(C, Incarnation(1)) in change.guards
    del sessions[B], logs[B]
    assert controller.decide(record, sessions, term=1, logs=logs) is None, "b may have had more"


def test_nobody_leads_by_an_old_record_while_a_node_that_it_does_not_know_has_more() -> None:
    """Copies had moved since: those that the record names may be empty."""
    record, sessions = record_of(A, B), _sessions(A, B, C)
    logs = {A: (Epoch(0), Offset(0)), B: (Epoch(5), Offset(7)), C: (Epoch(5), Offset(8))}
    assert controller.decide(record, sessions, term=1, logs=logs) is None
    logs[B] = logs[C]
    change = controller.decide(record, sessions, term=1, logs=logs)
    assert change is not None and change.record.leader == B
