"""The state of an embedded coordinator: records, sessions and a bounded history. Decides, and applies what is durable.

    decision = state.decide(transaction, now)    # reads; changes nothing
    one durable commit of decision.events        # by the shell
    state.apply(decision)                        # blind

One decision is in progress at a time. Times are seconds of one clock that goes on while the machine sleeps.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice
from typing import assert_never

from backend_store.cluster.core.values import (
    Changes,
    Compare,
    Delete,
    Event,
    Field,
    Get,
    Outcome,
    Page,
    Put,
    Record,
    Relation,
    Revision,
    SessionId,
    Transaction,
    end_of_prefix,
)
from backend_store.cluster.limits import (
    EMBEDDED_BYTES_MAX,
    EMBEDDED_RECORDS_MAX,
    HISTORY_BYTES_MAX,
    HISTORY_REVISIONS_MAX,
)
from backend_store.model import StorageFull


@dataclass(frozen=True, slots=True)
class Decision:
    """The effect of a transaction. Without events it changes nothing, and needs no commit."""

    outcome: Outcome
    events: tuple[Event, ...] = ()
    ended: SessionId | None = None
    """The session that ends with these events."""


@dataclass(slots=True)
class Held:
    """A session as its coordinator knows it."""

    ttl_s: int
    over_at: float
    keys: set[bytes]


@dataclass(frozen=True, slots=True)
class _Past:
    """A revision, with the previous record of each of its keys."""

    changes: Changes
    before: tuple[Record | None, ...]
    weight: int


class UnknownSession(Exception):
    """The session that a record is to be bound to is over, or never existed."""


class CompactedAway(Exception):
    """That part of the history is not kept any more; `oldest` is the first revision that can be read."""

    def __init__(self, oldest: Revision):
        super().__init__(f"revisions before {oldest} are not kept")
        self.oldest = oldest


class State:
    """The state of an embedded coordinator."""

    def __init__(self, records: Iterable[Record], sessions: Iterable[tuple[SessionId, int]], revision: int, now: float):
        """`sessions`: (id, ttl in s). Each gets its whole time again: the time that had passed is not stored."""
        self.revision = Revision(revision)
        self.records = {record.key: record for record in records}
        self.sessions = {session: Held(ttl_s, now + ttl_s, set()) for session, ttl_s in sessions}
        self.oldest = self.revision
        """The first revision that can be read, and the first that a watch can continue after: `_past` begins after
        it."""
        self.bytes = sum(_weight(record) for record in self.records.values())
        self._keys = sorted(self.records)
        self._past: deque[_Past] = deque()
        self._past_bytes = 0
        for record in self.records.values():
            if record.session is not None:
                assert record.session in self.sessions, f"record {record.key!r} outlived its session"
                self.sessions[record.session].keys.add(record.key)

    # ----------------------------------------------------------------------------------------------------- decide

    def decide(self, transaction: Transaction, now: float) -> Decision:
        """Raises `UnknownSession`, and `StorageFull` where records or bytes would become too many."""
        succeeded = all(self._holds(compare) for compare in transaction.compares)
        revision = Revision(self.revision + 1)
        changed: dict[bytes, Record | None] = {}
        found: list[Record | None] = []
        for operation in transaction.then if succeeded else transaction.otherwise:
            match operation:
                case Put(key, value, session):
                    if session is not None and not self.is_held(session, now):
                        raise UnknownSession(f"session {session} is over")
                    changed[key] = _written(self.records.get(key), key, value, session, revision)
                case Delete(key):
                    if key in self.records:
                        changed[key] = None
                case Get(key):
                    found.append(changed[key] if key in changed else self.records.get(key))
                case _:
                    assert_never(operation)
        self._check_room(changed)
        at = revision if changed else self.revision
        events = tuple(Event(key, record) for key, record in changed.items())
        return Decision(Outcome(succeeded, at, tuple(found)), events)

    def decide_end(self, session: SessionId) -> Decision:
        """Ends the session and deletes its records, at one revision."""
        events = tuple(Event(key, None) for key in sorted(self.sessions[session].keys))
        revision = Revision(self.revision + 1) if events else self.revision
        return Decision(Outcome(succeeded=True, revision=revision), events, ended=session)

    def is_held(self, session: SessionId, now: float) -> bool:
        held = self.sessions.get(session)
        return held is not None and now < held.over_at

    def keep(self, session: SessionId, now: float) -> None:
        """The session's time begins again."""
        held = self.sessions[session]
        held.over_at = now + held.ttl_s

    def over(self, now: float) -> list[SessionId]:
        """Sessions whose time is over."""
        return [session for session, held in self.sessions.items() if held.over_at <= now]

    def _holds(self, compare: Compare) -> bool:
        record = self.records.get(compare.key)
        if compare.field is Field.VALUE:
            return record is not None and _related(record.value, compare.relation, compare.expected)
        number = getattr(record, compare.field.value) if record is not None else 0
        return _related(number, compare.relation, compare.expected)

    def _check_room(self, changed: dict[bytes, Record | None]) -> None:
        added = more = 0
        for key, record in changed.items():
            before = self.records.get(key)
            more += (record is not None) - (before is not None)
            added += _weight(record) - _weight(before)
        if more > 0 and len(self.records) + more > EMBEDDED_RECORDS_MAX:
            raise StorageFull(f"the coordinator has {len(self.records)} records; it takes {EMBEDDED_RECORDS_MAX}")
        if added > 0 and self.bytes + added > EMBEDDED_BYTES_MAX:
            raise StorageFull(f"the coordinator holds {self.bytes} bytes; it takes {EMBEDDED_BYTES_MAX}")

    # ------------------------------------------------------------------------------------------------------ apply

    def open(self, session: SessionId, ttl_s: int, now: float) -> None:
        self.sessions[session] = Held(ttl_s, now + ttl_s, set())

    def apply(self, decision: Decision) -> None:
        """Applies the last decision, which is durable."""
        if decision.events:
            assert decision.outcome.revision == self.revision + 1, "decisions are applied in their order"
            before = tuple(self.records.get(event.key) for event in decision.events)
            for event in decision.events:
                self._set(event.key, event.record)
            self.revision = decision.outcome.revision
            self._remember(Changes(self.revision, decision.events), before)
        if decision.ended is not None:
            del self.sessions[decision.ended]

    def _set(self, key: bytes, record: Record | None) -> None:
        before = self.records.get(key)
        if before is not None and before.session is not None:
            self.sessions[before.session].keys.discard(key)
        self.bytes += _weight(record) - _weight(before)
        if record is None:
            if self.records.pop(key, None) is not None:
                del self._keys[bisect_left(self._keys, key)]
            return
        if before is None:
            insort(self._keys, key)
        self.records[key] = record
        if record.session is not None:
            self.sessions[record.session].keys.add(key)

    def _remember(self, changes: Changes, before: tuple[Record | None, ...]) -> None:
        weight = sum(_weight(event.record) for event in changes.events) + sum(_weight(record) for record in before)
        self._past.append(_Past(changes, before, weight))
        self._past_bytes += weight
        while len(self._past) > HISTORY_REVISIONS_MAX or self._past_bytes > HISTORY_BYTES_MAX:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        past = self._past.popleft()
        self._past_bytes -= past.weight
        self.oldest = past.changes.revision

    def compact(self, revision: Revision) -> None:
        """Forgets what was before this revision; the revision itself can still be read."""
        while self._past and self._past[0].changes.revision <= revision:
            self._forget_oldest()

    # ------------------------------------------------------------------------------------------------------- read

    def read(self, prefix: bytes, *, after: bytes, limit: int, at: Revision | None, changed_after: Revision) -> Page:
        """Raises `CompactedAway`."""
        revision = self.revision if at is None else at
        keys, records = self._as_of(prefix, revision)
        first = bisect_right(keys, after) if after else 0
        chosen: list[Record] = []
        for key in islice(keys, first, None):
            if records[key].changed_at > changed_after:
                chosen.append(records[key])
                if len(chosen) > limit:
                    break
        return Page(tuple(chosen[:limit]), revision, len(keys) - first, len(chosen) > limit)

    def _as_of(self, prefix: bytes, revision: Revision) -> tuple[list[bytes], dict[bytes, Record]]:
        """Keys of the prefix and records at that revision: the present ones, with all later changes undone."""
        if revision < self.oldest:
            raise CompactedAway(self.oldest)
        keys = self._below(prefix)
        if revision == self.revision:
            return keys, self.records
        records = {key: self.records[key] for key in keys}
        for past in reversed(self._past):
            if past.changes.revision <= revision:
                break
            for event, before in zip(past.changes.events, past.before, strict=True):
                if before is not None and event.key.startswith(prefix):
                    records[event.key] = before
                else:
                    records.pop(event.key, None)
        return sorted(records), records

    def _below(self, prefix: bytes) -> list[bytes]:
        end = end_of_prefix(prefix)
        first = bisect_left(self._keys, prefix)
        return self._keys[first : len(self._keys) if end is None else bisect_left(self._keys, end)]

    def changes(self, prefix: bytes, after: Revision, limit: int) -> tuple[list[Changes], Revision]:
        """Changes below the prefix after that revision, from up to `limit` revisions, and the revision to continue
        after.

        Raises `CompactedAway`.
        """
        if after < self.oldest:
            raise CompactedAway(self.oldest)
        skipped = after - self.oldest
        told: list[Changes] = []
        last = after
        for past in islice(self._past, skipped, skipped + limit):
            last = past.changes.revision
            events = tuple(event for event in past.changes.events if event.key.startswith(prefix))
            if events:
                told.append(Changes(last, events))
        return told, last


def _written(before: Record | None, key: bytes, value: bytes, session: SessionId | None, revision: Revision) -> Record:
    if before is None:
        return Record(key, value, revision, revision, 1, session)
    return replace(before, value=value, changed_at=revision, version=before.version + 1, session=session)


def _weight(record: Record | None) -> int:
    return 0 if record is None else len(record.key) + len(record.value)


def _related(actual: int | bytes, relation: Relation, expected: int | bytes) -> bool:
    match relation:
        case Relation.EQUAL:
            return actual == expected
        case Relation.NOT_EQUAL:
            return actual != expected
        case Relation.GREATER:
            return actual > expected  # type: ignore[operator]  # both are of the field's kind: see `check_transaction`
        case Relation.LESS:
            return actual < expected  # type: ignore[operator]
        case _:
            assert_never(relation)
