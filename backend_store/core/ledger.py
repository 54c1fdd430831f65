"""The ledger: what happened to a partition's messages, counted with each commit and cut into immutable rows.

A row covers a range of the log: which messages the commits in it added, which they removed and why. Ranges follow each
other without gaps, so additions less removals equal what is held at the end of each range: `Ledger.unexplained` is 0.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from backend_store.core.log.records import Ledger, PartitionState

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
"""Every kind of count, and whether it adds to the messages held, removes from them, or is only reported."""

DAY_MS: Final = 24 * 3600 * 1000

_IN = tuple(kind for kind, flow in KINDS.items() if flow == "in")
_OUT = tuple(kind for kind, flow in KINDS.items() if flow == "out")


class LedgerCut(msgspec.Struct, frozen=True, array_like=True):
    """One stored row: all counts between two offsets of a partition's log.

    `node` names the copy of the data that the log belongs to: a restored copy has a log of its own from there on.
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
    """Identifies the log of a ledger row."""

    node: str
    tenant: str
    queue: str
    uid: int
    partition: int


def held_in(state: PartitionState) -> tuple[int, int]:
    """Returns (messages, bytes) held: ready, leased, scheduled, dead, late or on their way to another queue."""
    tallies = state.views.values()
    return state.live + sum(t.live for t in tallies), state.live_bytes + sum(t.live_bytes for t in tallies)


def flowed(ledger: Ledger) -> int:
    """Returns how many messages should be held now."""
    came: int = sum(getattr(ledger, kind) for kind in _IN)
    went: int = sum(getattr(ledger, kind) for kind in _OUT)
    return ledger.held + came - went


def begin(state: PartitionState, *, anew: bool = False) -> None:
    """Starts the ledger of a partition that has none, or (`anew`) of a restored one, with the messages held."""
    if not anew and (state.ledger != Ledger() or not state.end):
        return
    state.ledger = Ledger(start=state.end, opening=held_in(state)[0], at_ms=state.ledger.at_ms)


def doom(state: PartitionState) -> None:
    """Counts all messages left as deleted with their queue, those too that consumers settle from now on."""
    ledger = state.ledger
    if ledger.is_doomed:
        for kind in _OUT:
            setattr(ledger, kind, 0)
    ledger.is_doomed = True
    ledger.deleted = flowed(ledger)


def day_is_over(ledger: Ledger, now_ms: int) -> bool:
    """Whether the latest count was on an earlier day than `now_ms`, so that the row must be cut."""
    return ledger.at_ms > 0 and ledger.at_ms // DAY_MS < now_ms // DAY_MS


def counts_at(ledger: Ledger, now_ms: int) -> int:
    """Returns the time of a row: now, or its latest count if that was on an earlier day. Within one log the time never
    goes back, whichever clock the next leader has.
    """
    return ledger.at_ms if day_is_over(ledger, now_ms) else max(ledger.at_ms, now_ms)


def is_owed(state: PartitionState) -> bool:
    """Whether anything was counted since the last row."""
    ledger = state.ledger
    return ledger.published_bytes > 0 or any(getattr(ledger, kind) for kind in KINDS)


def cut(state: PartitionState, title: Title, at_ms: int) -> LedgerCut | None:
    """Returns the row of the counts since the last one and starts a new ledger; None if nothing was counted."""
    if not is_owed(state):
        return None
    ledger = state.ledger
    at_ms = counts_at(ledger, at_ms)
    if state.end == ledger.start:
        state.end += 1  # retention leaves no record of its own, but the row's range must not be empty
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
