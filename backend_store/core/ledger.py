"""What became of a partition's messages, counted with each commit and cut into rows that are never changed again.

A row is about a range of the log: what the commits in it took in, what they let go and why. Ranges follow each other
without a hole, so what came in, less what went, is what is there at the end of each: `Ledger.unexplained` is 0.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from backend_store.core.records import Ledger, PartitionState

Flow = Literal["in", "out", "told"]

KINDS: Final[dict[str, Flow]] = {
    "opening": "in",
    "published": "in",
    "moved_in": "in",
    "copied": "in",
    "settled": "out",
    "expired": "out",
    "overflowed": "out",
    "retired": "out",
    "cancelled": "out",
    "dropped": "out",
    "purged": "out",
    "moved_out": "out",
    "deleted": "out",
    "lost": "out",
    "dead_lettered": "told",
    "late": "told",
    "read": "told",
    "unexplained": "told",
}
"""What may be counted, and whether it adds to what is there, takes from it, or is only told."""

DAY_MS: Final = 24 * 3600 * 1000

_IN = tuple(kind for kind, flow in KINDS.items() if flow == "in")
_OUT = tuple(kind for kind, flow in KINDS.items() if flow == "out")


class LedgerCut(msgspec.Struct, frozen=True, array_like=True):
    """One stored row: everything that was counted between two offsets of a partition's log.

    `node` names the copy of the data whose log it is: a restored one has a log of its own from there on.
    """

    node: str
    tenant: str
    queue: str
    uid: int
    partition: int
    epoch: int
    start: int
    end: int
    at_ms: int
    held: int
    held_bytes: int
    counts: dict[str, int]
    published_bytes: int = 0
    moved_in_bytes: int = 0


class Title(msgspec.Struct, frozen=True):
    """Whose log it is."""

    node: str
    tenant: str
    queue: str
    uid: int
    partition: int


def held_in(state: PartitionState) -> tuple[int, int]:
    """(messages, bytes) that are there: ready, leased, scheduled, dead, late or on their way to another queue."""
    tallies = state.views.values()
    return state.live + sum(t.live for t in tallies), state.live_bytes + sum(t.live_bytes for t in tallies)


def flowed(ledger: Ledger) -> int:
    """What should be there now."""
    came: int = sum(getattr(ledger, kind) for kind in _IN)
    went: int = sum(getattr(ledger, kind) for kind in _OUT)
    return ledger.held + came - went


def begin(state: PartitionState, *, anew: bool = False) -> None:
    """Begins the ledger of a partition that has none, or of a restored one, with what is there."""
    if not anew and (state.ledger != Ledger() or not state.end):
        return
    state.ledger = Ledger(start=state.end, opening=held_in(state)[0], at_ms=state.ledger.at_ms)


def doom(state: PartitionState) -> None:
    """The queue is deleted, and all that is left with it. What its consumers settle from now on went with it, too."""
    ledger = state.ledger
    if ledger.is_doomed:
        for kind in _OUT:
            setattr(ledger, kind, 0)
    ledger.is_doomed = True
    ledger.deleted = flowed(ledger)


def day_is_over(ledger: Ledger, now_ms: int) -> bool:
    """Whether what was counted is another day's than what will be."""
    return ledger.at_ms > 0 and ledger.at_ms // DAY_MS < now_ms // DAY_MS


def counts_at(ledger: Ledger, now_ms: int) -> int:
    """When what was counted is said to have been: now, or at its end where that was on an earlier day. Of one log it
    never goes back, whichever clock its next leader has."""
    return ledger.at_ms if day_is_over(ledger, now_ms) else max(ledger.at_ms, now_ms)


def is_owed(state: PartitionState) -> bool:
    """Whether something was counted since the last cut."""
    ledger = state.ledger
    return ledger.published_bytes > 0 or any(getattr(ledger, kind) for kind in KINDS)


def cut(state: PartitionState, title: Title, at_ms: int) -> LedgerCut | None:
    """The row of what was counted since the last one, and a ledger that begins behind it; None for nothing."""
    if not is_owed(state):
        return None
    ledger = state.ledger
    at_ms = counts_at(ledger, at_ms)
    if state.end == ledger.start:
        state.end += 1  # retention leaves no record of its own: the row's range needs a place in the log
    held, size = (0, 0) if ledger.is_doomed else held_in(state)
    ledger.unexplained = held - flowed(ledger)
    counts = {kind: count for kind in KINDS if (count := getattr(ledger, kind))}
    made = LedgerCut(
        title.node,
        title.tenant,
        title.queue,
        title.uid,
        title.partition,
        state.epoch,
        ledger.start,
        state.end,
        at_ms,
        held,
        size,
        counts,
        ledger.published_bytes,
        ledger.moved_in_bytes,
    )
    state.ledger = Ledger(start=state.end, held=held, is_doomed=ledger.is_doomed, at_ms=at_ms)
    return made
