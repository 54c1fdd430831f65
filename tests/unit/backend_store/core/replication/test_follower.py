"""A follower finds where its log and the leader's are one, and copies what follows."""

from __future__ import annotations

import msgspec
import pytest

from backend_store.core.replication import effects
from backend_store.core.replication.limits import EARLY_PAUSE_MS
from backend_store.core.replication.log import ProtocolBroken
from backend_store.core.replication.messages import Diverged, Fetch, Fetched
from backend_store.core.replication.settings import Settings
from backend_store.model import Epoch, Offset
from tests.support.replicas import A, B, C, Shell, changed, led, let_go, record_of


def _elects(record: object, shell: Shell, inc: int = 1) -> dict[str, object]:
    return {"epoch": Epoch(record.epoch + 1), "leader": shell.node, "leader_inc": inc}  # type: ignore[attr-defined]


def _last(shell: Shell, kind: type) -> object:
    return next(message for _, message in reversed(shell.outbox) if isinstance(message, kind))


def test_follower_has_the_leaders_bytes() -> None:
    _, (a, b) = led(A, B)
    a.publish(b"one", b"two")
    let_go(a, b)
    assert [entry.data for entry in b.entries] == [entry.data for entry in a.entries]
    assert a.replica.log.high_watermark == 3


def test_new_leaders_follower_does_not_cut_its_log_at_its_high_watermark() -> None:
    """What is committed may be above it: it comes later to followers (Kafka before KIP-101)."""
    record, (a, b, c) = led(A, B, C)
    a.publish(b"one")
    let_go(a, b, c)
    assert b.replica.log.high_watermark < 2
    for shell in (a, b, c):
        shell.learn(changed(record, **_elects(record, b)))
    assert c.log[-1] == (1, 1) and not c.all(effects.Truncate)


def test_tail_that_the_new_leader_lacks_is_cut_off() -> None:
    record, (a, b) = led(A, B, min_in_sync=1)
    a.publish(b"only here")
    a.commit()
    after = changed(record, **_elects(record, b))
    a.outbox.clear(), b.outbox.clear()
    b.learn(after)
    a.learn(after)
    let_go(a, b)
    assert a.log == b.log == ((0, 1), (1, 2))


def test_logs_of_two_quick_failovers_are_reconciled_step_by_step() -> None:
    """Two leaders wrote, each alone, before they died: one step back is not enough (KIP-279)."""
    record, (a, b, c) = led(A, B, C, min_in_sync=1)
    a.publish(b"1 of a", b"2 of a")
    a.commit()
    second = changed(record, **_elects(record, b))
    b.learn(second)
    b.publish(b"1 of b")
    b.commit()
    third = changed(second, **_elects(second, a))
    a.learn(third)
    a.commit()
    fourth = changed(third, **_elects(third, b))
    for shell in (a, b, c):
        shell.outbox.clear()
    b.learn(fourth)
    a.learn(fourth)
    let_go(a, b)
    assert a.log == b.log == ((0, 1), (1, 2), (2, 2), (3, 4))
    [cut] = a.all(effects.Truncate)
    assert cut.end == 1


def test_sync_replica_refuses_to_undo_what_it_knows_is_final() -> None:
    """Catching up by deleting what the receiver has confirmed is how mirrored queues lost messages."""
    _, (a, b) = led(A, B)
    a.publish(b"one")
    let_go(a, b)
    a.wait(Settings().fetch_wait_ms)
    let_go(a, b)
    assert b.replica.log.high_watermark == 2
    b.wait(Settings().fetch_timeout_ms)
    fetch = _last(b, Fetch)
    assert isinstance(fetch, Fetch)
    with pytest.raises(ProtocolBroken, match="2 is final"):
        b.hear(Diverged(0, Epoch(1), fetch.request, fetch.end, Epoch(1), Offset(1)))


def test_follower_fetches_when_all_it_has_is_on_its_disk() -> None:
    """A fetch is an acknowledgement: one before the flush is how replicated logs lost data in a power cut."""
    record = record_of(A, B)
    a, b = Shell(A), Shell(B)
    a.learn(record), b.learn(record)
    a.commit()
    a.hear(b.outbox.pop()[1])
    b.hear(a.outbox.pop()[1])
    assert b.log == ((0, 1),) and b.outbox == []
    b.commit()
    fetch = _last(b, Fetch)
    assert isinstance(fetch, Fetch) and fetch.end == 1


def test_only_the_answer_to_the_latest_request_counts() -> None:
    """A late "diverged" was once applied to a later log, and cut it below what was final."""
    _, (a, b) = led(A, B)
    stale = b.replica.role.request  # type: ignore[union-attr]
    b.wait(Settings().fetch_timeout_ms)
    b.hear(Diverged(0, Epoch(1), stale, Offset(1), Epoch(0), Offset(0)))
    assert b.log == a.log


def test_follower_that_hears_of_a_leader_before_that_one_does_asks_again_in_a_moment() -> None:
    """It once slept for a whole time-out, and nothing was confirmed meanwhile: it was in sync."""
    record, (a, b, c) = led(A, B, C)
    after = changed(record, **_elects(record, b))
    for shell in (a, b, c):
        shell.outbox.clear()
    c.learn(after)
    let_go(b, c)
    b.learn(after)
    a.learn(after)
    let_go(a, b)
    assert b.replica.log.high_watermark < 2, "c counts"
    for _ in range(2):
        c.wait(EARLY_PAUSE_MS)
        let_go(a, b, c)
    assert b.replica.log.high_watermark == 2


def test_answer_to_a_request_of_a_former_life_does_not_count() -> None:
    record, (_, b) = led(A, B)
    before = b.replica.role.request  # type: ignore[union-attr]
    reborn = b.reborn(inc=2)
    reborn.learn(record)
    assert reborn.replica.role.request > before + 1  # type: ignore[union-attr]


def test_entry_with_a_flipped_bit_is_not_stored_but_asked_for_again() -> None:
    """One bit flip on its way, or on another disk, must not become part of a log."""
    record = record_of(A, B)
    a, b = Shell(A), Shell(B)
    a.learn(record), b.learn(record)
    a.hear(b.outbox.pop()[1])
    answer = a.outbox.pop()[1]
    assert isinstance(answer, Fetched)
    data = bytearray(answer.entries[0])
    data[-1] ^= 4
    b.hear(msgspec.structs.replace(answer, entries=(bytes(data),)))
    assert b.log == ()
    assert isinstance(_last(b, Fetch), Fetch)


def test_entry_that_does_not_follow_the_last_one_stops_the_replica() -> None:
    _, (a, b) = led(A, B)
    stranger = Shell(A)
    stranger.learn(record_of(A, B))
    stranger.publish(b"another", b"log")
    b.wait(Settings().fetch_timeout_ms)
    request = b.replica.role.request  # type: ignore[union-attr]
    wrong = stranger.entries[2].data
    b.hear(Fetched(0, Epoch(1), request, Offset(1), (wrong,), Offset(0), Offset(0), 1))
    assert b.log == a.log
    forged = Shell(A)
    forged.learn(changed(record_of(A, B), epoch=Epoch(9)))
    forged.publish(b"x")
    b.wait(Settings().fetch_timeout_ms)
    request = b.replica.role.request  # type: ignore[union-attr]
    with pytest.raises(ProtocolBroken, match="does not follow"):
        b.hear(Fetched(0, Epoch(1), request, Offset(1), (forged.entries[1].data,), Offset(0), Offset(0), 1))


def test_tail_of_an_async_leader_goes_to_quarantine_and_its_effects_are_replaced() -> None:
    """Acknowledged and not replicated: it is counted and kept, never silently gone."""
    record, (a, b) = led(A, B, mode="async", min_in_sync=1)
    a.replica.keep_lease(a.now_ms + 60_000)
    a.wait(10_000)
    a.publish(b"acknowledged")
    a.commit()
    assert a.confirmed == [b"acknowledged"] and a.replica.log.applied == 2
    after = changed(record, **_elects(record, b))
    a.outbox.clear(), b.outbox.clear()
    b.learn(after)
    b.rows[b"key"] = b"value"
    a.learn(after)
    let_go(a, b)
    dropped = [change for change in b.submitted if A not in change.record.isr]
    assert dropped and not a.all(effects.Switch), "a member gives up its place before it takes another's state"
    out = dropped[-1].record
    a.learn(out), b.learn(out)
    a.wait(Settings().fetch_timeout_ms)
    let_go(a, b)
    assert [entry.payload for entry in a.quarantine] == [b"acknowledged"]
    assert a.log[-1] == b.log[-1] == (1, 2)
    assert a.all(effects.StageRows)[0].rows == ((b"key", b"value"),)


def test_tail_that_an_async_follower_cuts_off_goes_to_quarantine_too() -> None:
    """It may be the last copy of what its leader had acknowledged."""
    record, (a, b, c) = led(A, B, C, mode="async", min_in_sync=1)
    a.replica.keep_lease(a.now_ms + 60_000)
    a.wait(10_000)
    a.publish(b"acknowledged")
    let_go(a, b)
    after = changed(record, **_elects(record, c))
    for shell in (b, c):
        shell.outbox.clear()
        shell.learn(after)
    let_go(b, c)
    assert b.log[-1] == c.log[-1] == (1, 2) and [entry.payload for entry in b.quarantine] == [b"acknowledged"]


def test_replica_behind_the_leaders_log_takes_a_snapshot_and_goes_on_from_there() -> None:
    record, (a, b) = led(A, B)
    a.publish(b"one", b"two")
    let_go(a, b)
    a.wait(Settings().look_ms)
    assert a.replica.log.start == 3
    a.rows[b"key"] = b"value"
    late = changed(record, replicas=(A, B, C))
    a.learn(late)
    c = Shell(C)
    c.learn(late)
    let_go(a, c)
    [switch] = c.all(effects.Switch)
    assert switch.base.end == 3 and not switch.keeps
    assert (c.replica.log.start, c.replica.log.end, c.replica.log.is_whole) == (3, 3, True)
    a.publish(b"three")
    let_go(a, b, c)
    assert c.log == ((3, 1),)


def test_async_replica_with_half_a_snapshot_takes_another_from_the_next_leader() -> None:
    """What the first leader had applied, and showed, may never be in the log of the second."""
    record, (_, b) = led(A, B, mode="async", min_in_sync=1)
    stored = msgspec.structs.replace(b.replica.log.stored(), whole_from=Offset(9))
    half = Shell(B, inc=2, stored=stored, entries=tuple(b.entries))
    half.learn(changed(record, epoch=Epoch(2)))
    assert "AskSnapshot" in {type(message).__name__ for _, message in half.outbox}


def test_disk_keeps_all_that_a_replica_needs_to_go_on() -> None:
    _, (a, b) = led(A, B)
    a.publish(b"one")
    let_go(a, b)
    stored = msgspec.msgpack.decode(msgspec.msgpack.encode(b.replica.log.stored()), type=type(b.replica.log.stored()))
    again = Shell(B, inc=2, stored=stored, entries=tuple(b.entries))
    assert again.replica.log.stored() == b.replica.log.stored()
    assert (again.replica.log.end, again.replica.log.last_epoch) == (2, 1)


def test_replica_that_is_taken_out_fetches_no_more() -> None:
    record, [leader, follower, _] = led(A, B, C)
    follower.learn(changed(record, replicas=(A, C), isr=(A, C)))
    follower.outbox.clear()
    follower.wait(10_000)
    assert follower.outbox == [] and follower.replica.role is None
    again = changed(record, version=record.version + 2)
    follower.learn(again)
    assert [type(message) for _, message in follower.outbox] == [Fetch]
    assert leader.replica.leader is not None
