"""Fenced writes: conditional on the record's revision and on the writer's own key.

A writer's *right* is a key of its own and the revision at which that key was created. The key goes with the writer's
session and never comes back: a successor's key has another revision. So however late a write arrives, or however long
its writer was stopped, the coordinator refuses it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from backend_store.cluster.coordinator import Coordinator
from backend_store.cluster.core.values import (
    NEVER,
    Compare,
    Get,
    Operation,
    Outcome,
    Put,
    Record,
    Revision,
    Transaction,
    changed_at,
    created_at,
)
from backend_store.cluster.limits import FENCED_PAUSE_SECONDS, FENCED_TRIES_MAX
from backend_store.model import OutcomeUnknown, PushqError, Unavailable


@dataclass(frozen=True, slots=True)
class Right:
    """The writer's own key, and the revision at which it was created."""

    key: bytes
    created_at: Revision


class Fenced(PushqError):
    """The writer's right is gone for good, and its write was not made. Stop acting on it."""

    code = "not-leader"


class Stale(PushqError):
    """The record was changed meanwhile, and the write was not made. `found` is the record as it is now."""

    code = "conflict"

    def __init__(self, detail: str, found: Record | None):
        super().__init__(detail)
        self.found = found


async def put_fenced(
    coordinator: Coordinator, right: Right, key: bytes, value: bytes, *, based_on: Record | None
) -> Record:
    """Writes the record if it still is `based_on` (None: absent) and the right still holds. Returns the record as
    written.

    An unknown outcome is resolved by repeating: the condition lets the write happen once. That needs a record which
    only holders of this right write, one write at a time. Raises `Fenced`, `Stale`, `Unavailable`, and `OutcomeUnknown`
    only where the coordinator stays silent, or the right went while the outcome was open.
    """
    base = NEVER if based_on is None else based_on.changed_at
    write = Transaction(
        compares=(created_at(right.key, right.created_at), changed_at(key, base)),
        then=(Put(key, value),),
        otherwise=(Get(right.key), Get(key)),
    )
    unknown: OutcomeUnknown | None = None
    for _ in range(FENCED_TRIES_MAX):
        try:
            outcome = await coordinator.transact(write)
        except OutcomeUnknown as error:
            unknown = error
        except Unavailable:
            if unknown is None:
                raise
        else:
            if outcome.succeeded:
                return _as_written(key, value, outcome, based_on)
            return _explained(right, key, value, outcome, base, unknown)
        await asyncio.sleep(FENCED_PAUSE_SECONDS)
    assert unknown is not None
    raise unknown


def _as_written(key: bytes, value: bytes, outcome: Outcome, based_on: Record | None) -> Record:
    if based_on is None:
        return Record(key, value, outcome.revision, outcome.revision, 1)
    return Record(key, value, based_on.created_at, outcome.revision, based_on.version + 1)


def _explained(
    right: Right, key: bytes, value: bytes, outcome: Outcome, base: Revision, unknown: OutcomeUnknown | None
) -> Record:
    """Raises the reason why the write did not succeed; or returns the record, where an earlier try of it did."""
    own, found = outcome.found
    at = NEVER if found is None else found.changed_at
    if own is None or own.created_at != right.created_at:
        if unknown is not None and at != base:
            raise OutcomeUnknown(f"{right.key!r} is not ours any more, and {key!r} was written; by whom is not known")
        raise Fenced(f"{right.key!r} of revision {right.created_at} is gone: {key!r} was not written")
    if unknown is not None and found is not None and at > base and found.value == value:
        return found
    raise Stale(f"{key!r} is of revision {at} by now, the write was based on {base}", found)


async def transact_fenced(
    coordinator: Coordinator, right: Right, then: Sequence[Operation], *, compares: Sequence[Compare] = ()
) -> Outcome:
    """Any transaction, on the further condition that the right holds. Raises `Fenced`.

    An `Outcome` that did not succeed, and found nothing, means that one of `compares` did not hold. The caller resolves
    an unknown outcome.
    """
    own = created_at(right.key, right.created_at)
    outcome = await coordinator.transact(Transaction((own, *compares), tuple(then), (Get(right.key),)))
    if outcome.succeeded:
        return outcome
    holder = outcome.found[0]
    if holder is None or holder.created_at != right.created_at:
        raise Fenced(f"{right.key!r} of revision {right.created_at} is gone: nothing was written")
    return Outcome(succeeded=False, revision=outcome.revision)
