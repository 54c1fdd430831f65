"""The embedded state against the simplest thing that could be right: a copy of all records for each revision."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_store.cluster.core import state as states
from backend_store.cluster.core.state import CompactedAway, State, UnknownSession
from backend_store.cluster.core.values import (
    NEVER,
    Delete,
    Event,
    Get,
    Operation,
    Put,
    Record,
    Revision,
    SessionId,
    Transaction,
    absent,
    end_of_prefix,
)
from backend_store.model import StorageFull

KEYS = [b"a", b"a/1", b"a/2", b"a\xff", b"b", b"\xff", b"\xff\xff"]
PREFIXES = [b"", b"a", b"a/", b"b", b"\xff", b"zz"]
SESSION = SessionId(7)

writes = st.one_of(
    st.builds(Put, st.sampled_from(KEYS), st.binary(max_size=3), st.sampled_from([None, SESSION])),
    st.builds(Delete, st.sampled_from(KEYS)),
)
branches = st.lists(writes, max_size=4, unique_by=lambda operation: operation.key)


def empty(now: float = 0.0) -> State:
    return State([], [(SESSION, 10)], 1, now)


def done(state: State, *operations: Operation, now: float = 1.0) -> Revision:
    decision = state.decide(Transaction(then=operations), now)
    state.apply(decision)
    return decision.outcome.revision


@given(st.lists(branches, max_size=12))
def test_every_revision_can_be_read_and_watched_as_it_was(history: list[list[Operation]]) -> None:
    state = empty()
    past: dict[int, dict[bytes, Record]] = {1: {}}
    for operations in history:
        revision = done(state, *operations)
        past.setdefault(revision, dict(state.records))
    assert max(past) == state.revision and state.bytes == sum(len(r.key) + len(r.value) for r in state.records.values())
    for prefix in PREFIXES:
        for revision, records in past.items():
            wanted = sorted((key, record) for key, record in records.items() if key.startswith(prefix))
            page = state.read(prefix, after=b"", limit=100, at=Revision(revision), changed_after=NEVER)
            assert [(record.key, record) for record in page.records] == wanted
            assert (page.count, page.has_more) == (len(wanted), False)

            # Whoever follows from there ends with today's records.
            followed = {key: record for key, record in records.items() if key.startswith(prefix)}
            told, at = state.changes(prefix, Revision(revision), 1_000)
            for changes in told:
                for event in changes.events:
                    followed.pop(event.key, None)
                    if event.record is not None:
                        followed[event.key] = event.record
            assert at == state.revision
            assert followed == {key: r for key, r in state.records.items() if key.startswith(prefix)}


@given(st.lists(branches, min_size=1, max_size=12), st.integers(1, 12))
def test_what_was_forgotten_is_refused_and_never_told_with_holes(history: list[list[Operation]], at: int) -> None:
    state = empty()
    for operations in history:
        done(state, *operations)
    whole, _ = state.changes(b"", Revision(1), 1_000)
    compacted = min(at, state.revision)
    state.compact(Revision(compacted))
    for after in range(1, state.revision + 1):
        if after < compacted:
            with pytest.raises(CompactedAway) as refused:
                state.changes(b"", Revision(after), 1_000)
            assert refused.value.oldest == compacted
            with pytest.raises(CompactedAway):
                state.read(b"", after=b"", limit=1, at=Revision(after), changed_after=NEVER)
        else:
            told, _ = state.changes(b"", Revision(after), 1_000)
            assert told == [changes for changes in whole if changes.revision > after]


@given(st.binary(max_size=4), st.binary(max_size=4))
def test_a_prefix_ends_where_the_first_other_key_begins(prefix: bytes, key: bytes) -> None:
    end = end_of_prefix(prefix)
    assert key.startswith(prefix) == (key >= prefix and (end is None or key < end))


def test_history_keeps_to_its_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "HISTORY_REVISIONS_MAX", 5)
    state = empty()
    for _ in range(20):
        done(state, Put(b"k", b"v"))
    assert state.revision == 21 and state.oldest == 16
    monkeypatch.setattr(states, "HISTORY_BYTES_MAX", 100)
    done(state, Put(b"k", bytes(95)))
    assert state.oldest == 21
    done(state, Put(b"k", bytes(95)))
    assert state.oldest == state.revision == 23, "one revision may be more than what is kept of all"


def test_records_keep_to_their_bounds_and_can_be_deleted_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "EMBEDDED_RECORDS_MAX", 2)
    monkeypatch.setattr(states, "EMBEDDED_BYTES_MAX", 20)
    state = empty()
    done(state, Put(b"a", b""), Put(b"b", b""))
    with pytest.raises(StorageFull, match="has 2 records"):
        state.decide(Transaction(then=(Put(b"c", b""),)), 1.0)
    done(state, Put(b"c", b""), Delete(b"a"))
    with pytest.raises(StorageFull, match="holds 2 bytes"):
        state.decide(Transaction(then=(Put(b"c", bytes(20)),)), 1.0)
    done(state, Put(b"c", bytes(18)))
    done(state, Delete(b"c"))


def test_a_session_takes_its_records_and_what_was_taken_from_it_stays() -> None:
    state = empty()
    done(state, Put(b"a", b"", SESSION), Put(b"b", b"", SESSION), Put(b"c", b"", SESSION))
    done(state, Put(b"b", b""), Delete(b"c"))
    decision = state.decide_end(SESSION)
    assert decision.events == (Event(b"a", None),)
    state.apply(decision)
    assert list(state.records) == [b"b"] and not state.sessions


def test_a_session_whose_time_is_up_is_over_before_anybody_has_looked() -> None:
    state = empty(now=100.0)
    assert state.is_held(SESSION, 109.9) and state.over(109.9) == []
    state.keep(SESSION, 105.0)
    assert state.is_held(SESSION, 114.9)
    assert not state.is_held(SESSION, 115.0) and state.over(115.0) == [SESSION]
    with pytest.raises(UnknownSession):
        state.decide(Transaction(then=(Put(b"a", b"", SESSION),)), 115.0)
    # A branch that is not taken asks for nothing.
    unbound = Transaction((absent(b"a"),), (Put(b"a", b""),), (Put(b"a", b"", SESSION),))
    assert state.decide(unbound, 115.0).outcome.succeeded


def test_a_decision_changes_nothing_until_it_is_applied() -> None:
    state = empty()
    decision = state.decide(Transaction(then=(Put(b"a", b"1"), Get(b"a"))), 1.0)
    assert decision.outcome.found[0] is not None
    assert (state.revision, state.records) == (1, {})
