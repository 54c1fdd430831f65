"""A leader knows what is committed, who counts for it, and whom to answer."""

from __future__ import annotations

import msgspec
import pytest

from backend_store.core.replication import effects
from backend_store.core.replication.messages import Fetch, Message, WrongEpoch
from backend_store.core.replication.record import DiskId, Identity, Incarnation, NodeIs
from backend_store.core.replication.settings import Settings
from backend_store.model import Epoch, Offset
from tests.support.replicas import WALL_MS, A, B, C, Shell, changed, disk_of, led, let_go, record_of

UNFOLLOWED_MS = Settings().unfollowed_ms
LAG_MS = Settings().lag_ms_max


def _fetch(node: str, end: int, *, epoch: int = 1, inc: int = 1, disk: str | None = None, request: int = 1) -> Fetch:
    sender = Identity(node, Incarnation(inc), DiskId(disk or f"disk of {node}"))  # type: ignore[arg-type]
    return Fetch(0, Epoch(epoch), request << 40, sender, Offset(end), Epoch(1 if end else 0))


def _says(shell: Shell) -> list[Message]:
    return [message for _, message in shell.outbox]


def test_publish_is_confirmed_when_all_in_sync_have_it_on_their_disks() -> None:
    _, (a, b, c) = led(A, B, C)
    a.publish(b"one")
    a.commit()
    let_go(a, b)
    assert a.confirmed == []
    let_go(a, b, c)
    c.wait(Settings().fetch_timeout_ms)
    let_go(a, b, c)
    assert a.confirmed == [b"one"]


def test_leader_counts_itself_only_for_what_is_on_its_own_disk() -> None:
    """An answer before the flush is what a coordinated power cut takes back."""
    _, (a, b) = led(A, B)
    a.publish(b"one")
    for to, message in a.outbox:
        assert to == B
        b.hear(message)
    b.commit()
    a.hear(b.outbox[-1][1])
    assert a.replica.log.high_watermark == 1 and a.confirmed == []
    a.commit()
    assert a.confirmed == [b"one"]


def test_nothing_is_taken_or_committed_with_too_few_in_sync() -> None:
    record, (a, b) = led(A, B)
    a.publish(b"before")
    a.learn(changed(record, isr=(A,), elr=(B,)))
    let_go(a, b)
    assert a.publish(b"after") == "not-durable"
    assert a.replica.log.high_watermark == 1 and not a.replica.leader.is_serving(a.now_ms)  # type: ignore[union-attr]


def test_member_that_lags_counts_until_the_change_is_made() -> None:
    """A leader that shrank its own set committed what a later leader did not have."""
    _, (a, b, _) = led(A, B, C)
    a.publish(b"one")
    let_go(a, b)
    b.wait(1)
    a.wait(LAG_MS - 1)
    b.wait(Settings().fetch_timeout_ms)
    let_go(a, b)
    a.wait(LAG_MS)
    [asked] = a.submitted
    assert C not in asked.record.isr and a.confirmed == []
    a.learn(asked.record)
    b.wait(Settings().fetch_timeout_ms)
    let_go(a, b)
    assert a.confirmed == [b"one"]


def test_member_whose_session_has_ended_is_dropped_without_waiting_and_counts_until_then() -> None:
    _, (a, b, _) = led(A, B, C)
    a.publish(b"one")
    let_go(a, b)
    b.wait(1)
    a.replica.has_ended([C])
    a.wait(1)
    let_go(a, b)
    [asked] = a.submitted
    assert asked.record.isr == (A, B) and a.confirmed == []
    a.learn(asked.record)
    assert a.confirmed == [b"one"]


def test_one_that_joins_counts_before_the_change_is_made() -> None:
    record, (a, b) = led(A, B, min_in_sync=1)
    a.learn(changed(record, isr=(A,)))
    b.wait(Settings().fetch_timeout_ms)
    let_go(a, b)
    assert a.submitted[-1].record.isr == (A, B)
    a.publish(b"one")
    a.commit()
    assert a.confirmed == []
    let_go(a, b)
    assert a.confirmed == [b"one"]


def test_change_that_lets_join_names_the_life_and_the_disk() -> None:
    """The coordinator refuses it when that life is over: a stale replica must not come back into the set."""
    a = Shell(A)
    a.learn(record_of(A, B, min_in_sync=1, isr=(A,)))
    a.commit()
    a.hear(_fetch("b", 1, inc=2, disk="new"))
    asked = a.submitted[-1]
    assert NodeIs(B, Incarnation(2)) in asked.guards and NodeIs(A, Incarnation(1)) in asked.guards
    assert asked.record.disks[B] == "new"


def test_what_a_former_life_had_does_not_count_for_the_next() -> None:
    _, (a, _) = led(A, B)
    a.publish(b"one")
    a.commit()
    a.hear(_fetch("b", 2, request=2))
    followers = a.replica.leader.followers  # type: ignore[union-attr]
    assert followers.end_of(B, {B: disk_of(B)}) == 2
    a.hear(_fetch("b", 1, inc=2))
    assert followers.end_of(B, {B: disk_of(B)}) == 1
    a.hear(_fetch("b", 2, request=9))
    assert followers.end_of(B, {B: disk_of(B)}) == 1, "a fetch of the former life came late"


def test_member_on_another_disk_does_not_count() -> None:
    _, (a, _) = led(A, B)
    a.publish(b"one")
    a.commit()
    a.hear(_fetch("b", 2, inc=2, disk="new"))
    assert a.confirmed == [] and a.replica.log.high_watermark == 1


def test_change_without_an_answer_is_submitted_again_the_very_same() -> None:
    record, (a, _, _) = led(A, B, C)
    a.wait(LAG_MS + 1)
    a.wait(Settings().change_retry_ms)
    assert len(a.submitted) == 2 and a.submitted[0] is a.submitted[1]
    assert a.submitted[0].expects == record.version


def test_refusal_of_one_change_is_not_taken_for_that_of_another() -> None:
    record, (a, _) = led(A, B, min_in_sync=1)
    alone = changed(record, isr=(A,))
    a.learn(alone)
    a.hear(_fetch("b", 1, request=5))
    first = a.submitted[-1]
    refused = {"now_ms": a.now_ms, "wall_ms": WALL_MS}
    a.replica.on_refused(first, alone, **refused)
    a.hear(_fetch("b", 1, inc=2, request=6))
    second = a.submitted[-1]
    assert second.id != first.id and second.expects == first.expects
    a.replica.on_refused(first, alone, **refused)
    a.publish(b"one")
    a.commit()
    assert a.confirmed == [], "the second change may have been made: who joins by it counts"


def test_new_leader_answers_nobody_before_its_barrier_is_committed() -> None:
    """Who published again is told of the original when that is safe, and not when it is merely there."""
    record, (a, b) = led(A, B)
    a.publish(b"one")
    let_go(a, b)
    after = changed(record, epoch=Epoch(2), leader=B)
    b.learn(after)
    b.replica.wait(Offset(2), "published again", now_ms=b.now_ms)
    b.settle()
    b.commit()
    assert b.confirmed == []
    a.learn(after)
    let_go(a, b)
    assert b.confirmed == ["published again"]


def test_repeated_publish_is_answered_when_the_original_is_committed() -> None:
    _, (a, b) = led(A, B)
    made = a.publish(b"one", ticket="first")
    a.replica.wait(made[-1].end, "again", now_ms=a.now_ms)
    a.settle()
    a.commit()
    assert a.confirmed == []
    let_go(a, b)
    assert a.confirmed == ["first", "again"]


def test_callers_of_a_deposed_leader_are_told_that_the_outcome_is_unknown() -> None:
    record, (a, _) = led(A, B)
    a.publish(b"one")
    a.learn(changed(record, epoch=Epoch(2), leader=B))
    assert [effect.tickets for effect in a.all(effects.Abandon)] == [(b"one",)]
    assert a.publish(b"two") == "not-leader"


def test_leader_takes_no_more_than_its_bound_of_uncommitted_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend_store.core.replication.leader.UNCOMMITTED_ENTRIES_MAX", 3)
    _, (a, _) = led(A, B)
    a.publish(b"1", b"2", b"3")
    assert a.publish(b"4") == "overloaded"


def test_no_more_than_the_bound_of_callers_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend_store.core.replication.waiting.WAITERS_MAX", 2)
    _, (a, _) = led(A, B)
    made = a.publish(b"one")
    assert a.replica.wait(made[-1].end, "again", now_ms=a.now_ms)
    assert not a.replica.wait(made[-1].end, "and again", now_ms=a.now_ms)
    assert a.publish(b"two") == "overloaded"


# --------------------------------------------------------------------------------------------- who leads


def test_restarted_node_does_not_lead_by_a_record_that_names_its_former_life() -> None:
    record, (a, _) = led(A, B)
    reborn = a.reborn(inc=2)
    reborn.learn(record)
    assert reborn.replica.leader is None


def test_record_of_an_epoch_below_the_own_log_is_not_obeyed() -> None:
    """A late "you lead epoch 1" reached a node whose log had epoch 3 in it."""
    record, (a, _) = led(A, B)
    a.learn(changed(record, epoch=Epoch(3), leader_inc=Incarnation(1)))
    assert a.log[-1] == (1, 3)
    reborn = a.reborn(inc=1)
    reborn.learn(record)
    assert reborn.replica.role is None and reborn.log[-1] == (1, 3)


def test_older_version_of_the_record_changes_nothing() -> None:
    record, (a, _) = led(A, B)
    a.learn(changed(record, epoch=Epoch(2), leader=B))
    a.learn(record)
    assert a.replica.leader is None


def test_node_with_a_new_session_has_to_become_leader_again() -> None:
    _, (a, _) = led(A, B)
    a.publish(b"one")
    a.replica.rejoin(Incarnation(2), now_ms=a.now_ms, wall_ms=WALL_MS)
    a.settle()
    assert a.replica.leader is None and a.all(effects.Abandon)


def test_fetch_of_another_epoch_is_answered_with_the_own_one() -> None:
    _, (a, _) = led(A, B)
    a.outbox.clear()
    a.hear(_fetch("b", 1, epoch=5))
    assert _says(a) == [WrongEpoch(0, Epoch(1), 1 << 40)] and a.all(effects.Reread)
    assert a.replica.leader.followers.end_of(B, {B: disk_of(B)}) == 1  # type: ignore[union-attr]


# ---------------------------------------------------------------------------------- async, handover, trim


def test_async_publish_is_confirmed_on_the_leaders_own_disk_while_it_is_vouched_for() -> None:
    _, (a, _) = led(A, B, mode="async", min_in_sync=1)
    assert a.publish(b"too early") == "not-durable"
    a.wait(60_000)
    assert a.publish(b"nobody vouches") == "not-durable"
    a.replica.keep_lease(a.now_ms + 1_000)
    a.publish(b"one")
    assert a.confirmed == []
    a.commit()
    assert a.confirmed == [b"one"]


def test_session_that_is_lost_vouches_no_longer_for_as_long_as_it_was_kept() -> None:
    """The coordinator may end one early: the next leader waits only for what followers lent, and not for this lease."""
    _, (a, _) = led(A, B, mode="async", min_in_sync=1)
    a.wait(60_000)
    a.replica.keep_lease(a.now_ms + 4_000)
    assert isinstance(a.publish(b"one"), tuple)
    a.replica.lose_lease()
    a.commit()
    assert a.confirmed == [] and a.publish(b"two") == "not-durable"


def test_async_leader_without_the_coordinator_goes_on_while_all_others_follow_it() -> None:
    settings = Settings(peer_lease_ms=1_000)
    record = record_of(A, B, mode="async", min_in_sync=1, is_released=True)
    a, b = Shell(A, settings=settings), Shell(B, settings=settings)
    a.learn(record), b.learn(record)
    let_go(a, b)
    a.now_ms = b.now_ms = 20_000
    for shell in (b, a, b):
        shell.wait(settings.fetch_timeout_ms)
        let_go(a, b)
    b.wait(settings.fetch_timeout_ms)
    let_go(a, b)
    assert isinstance(a.publish(b"one"), tuple)
    a.now_ms += settings.peer_lease_ms + 1
    assert a.publish(b"two") == "not-durable"


def test_handover_waits_until_the_target_has_everything_and_takes_nothing_new() -> None:
    _, (a, b) = led(A, B)
    a.publish(b"one")
    a.replica.hand_over(B, now_ms=a.now_ms)
    a.settle()
    assert a.submitted == [] and a.publish(b"two") == "leaving"
    let_go(a, b)
    [asked] = a.submitted
    assert (asked.record.leader, asked.record.epoch) == (B, 2)
    assert a.confirmed == [b"one"]


def test_handover_to_one_out_of_sync_is_given_up_and_publishes_are_taken_again() -> None:
    record, (a, _) = led(A, B, min_in_sync=1)
    a.learn(changed(record, isr=(A,)))
    a.replica.hand_over(B, now_ms=a.now_ms)
    a.wait(Settings().handover_ms_max)
    assert all(change.record.leader == A for change in a.submitted)
    assert isinstance(a.publish(b"one"), tuple)


def test_leader_resigns_when_everything_is_committed() -> None:
    _, (a, b) = led(A, B)
    a.publish(b"one")
    a.replica.hand_over(None, now_ms=a.now_ms)
    a.settle()
    assert a.submitted == []
    let_go(a, b)
    a.wait(Settings().look_ms)
    assert a.submitted[-1].record.leader is None and a.submitted[-1].record.resigned == A


def test_leader_whom_nobody_asks_lets_another_one_lead() -> None:
    """Cut off from its followers, and not from the coordinator, it would refuse publishes for ever."""
    _, (a, _, _) = led(A, B, C)
    a.publish(b"never confirmed")
    a.commit()
    a.wait(LAG_MS + 1)
    a.learn(a.submitted[-1].record)  # one is dropped
    a.wait(1)
    a.learn(a.submitted[-1].record)  # and the other, without whom nothing was confirmed
    [could_lead] = a.replica.record.elr  # type: ignore[union-attr]
    asked = len(a.submitted)
    a.wait(UNFOLLOWED_MS - 1)
    assert len(a.submitted) == asked
    a.replica.has_ended([could_lead])
    a.wait(1)
    assert len(a.submitted) == asked, "nobody else could lead"
    a.replica.has_ended([])
    a.wait(1)
    assert a.submitted[-1].record.leader is None and a.submitted[-1].record.resigned == A
    assert a.confirmed == []


def test_leader_with_too_few_in_sync_stays_while_one_of_the_others_asks_it() -> None:
    """That one is about to have everything, and to be in sync again."""
    record, (a, b) = led(A, B)
    a.learn(changed(record, isr=(A,), elr=(B,)))
    for _ in range(4):
        a.wait(UNFOLLOWED_MS // 2)
        b.wait(UNFOLLOWED_MS // 2)
        let_go(a, b)
    assert all(change.record.leader == A for change in a.submitted)


def test_async_leader_whom_nobody_asks_goes_on() -> None:
    record, (a, _) = led(A, B, mode="async")
    a.learn(changed(record, isr=(A,), elr=(B,)))
    a.wait(10 * UNFOLLOWED_MS)
    assert all(change.record.leader == A for change in a.submitted)


def test_log_is_kept_for_a_replica_that_is_behind_until_it_is_too_far() -> None:
    record, (a, b) = led(A, B)
    late = changed(record, replicas=(A, B, C))
    a.learn(late)
    a.publish(b"x" * 100)
    let_go(a, b)
    a.wait(1)
    assert a.replica.log.start == 0, "nothing is known of c yet"
    few = Settings(catchup_bytes_max=100)
    a.replica.leader._settings = few  # type: ignore[union-attr]
    a.wait(1)
    assert a.replica.log.start == 2


def test_log_is_not_trimmed_above_what_is_applied_and_final() -> None:
    _, (a, _) = led(A, B)
    a.publish(b"one")
    a.commit()
    log = a.replica.log
    assert not log.trim(99) or log.start <= log.high_watermark
    assert log.start == 1


def test_commit_that_began_before_a_truncation_does_not_make_what_came_after_durable() -> None:
    _, (a, _) = led(A, B)
    a.publish(b"one", b"two")
    log = a.replica.log
    mark = log.staged()
    log.truncate(Offset(1))
    log.append([a.entries[1]._replace(time_ms=log.last.time_ms)])
    log.committed(mark)
    assert log.durable_end == 1 and not log.is_clean


# ----------------------------------------------------------------------------------------------- the rest


def test_everything_that_replicas_say_can_be_carried() -> None:
    _, (a, b) = led(A, B)
    a.publish(b"one")
    a.replica.hand_over(B, now_ms=a.now_ms)
    said: list[Message] = []
    for _ in range(4):
        for shell, other in ((a, b), (b, a)):
            shell.commit()
            said += _says(shell)
            for message in _says(shell):
                other.hear(message)
            shell.outbox.clear()
    assert {"Fetch", "Fetched"} <= {type(message).__name__ for message in said}
    for message in said:
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=type(message)) == message
    change = a.submitted[-1]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(change), type=type(change)) == change


def test_follower_says_when_it_must_be_looked_at_again() -> None:
    _, (a, b) = led(A, B)
    assert b.replica.next_look_ms(b.now_ms) == b.now_ms + Settings().fetch_timeout_ms
    assert a.replica.next_look_ms(a.now_ms) == a.now_ms + Settings().look_ms
    assert Shell(C).replica.next_look_ms(0) is None


def test_times_that_would_drop_healthy_followers_are_refused_with_what_to_choose() -> None:
    with pytest.raises(ValueError, match=r"lag_ms_max: 500 ms .* at least twice"):
        Settings(lag_ms_max=500)
    with pytest.raises(ValueError, match=r"fetch_timeout_ms: 100 ms .* set more"):
        Settings(fetch_timeout_ms=100)
