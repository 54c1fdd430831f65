"""Sorted queues: between the log and delivery a message waits here for its turn, where `sequencing` is not `arrival`.

The contract of `by_clock` and `by_producer`. In each commit cycle the partition asks `decide` about what arrived, gives
offsets, tells them by `add`, takes whose turn has come by `release`, and stores `records` and what was released with
the messages themselves. The state here is the overlay: it is ahead of the disk by the commit in flight. A commit that
fails makes it worthless, and `restore` makes it anew from what is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from backend_store.core.order_records import OrderRecord
from backend_store.model import Original, Overloaded, QueueConfig, Stamp
from backend_store.words import counted

NO_MESSAGE = -1
"""In place of an offset: the message was dropped for another reason, its id is known; its number counts as used."""


class Held(NamedTuple):
    """A message whose turn had not come when the process ended: in the log, alive, not late, never released."""

    offset: int
    stamp: Stamp | None
    arrived_ms: int
    """The time in its chunk's header; the `now_ms` of the decision about it."""


class Sorted:
    """What is decided of some arrivals, by their index. What is not named waits for its turn."""

    __slots__ = ("now_ms", "late", "repeats", "refused")

    def __init__(self, now_ms: int):
        self.now_ms = now_ms
        self.late: list[int] = []
        """Their place was handed out: stored, flagged, on their way elsewhere. They need an offset as well."""
        self.repeats: list[int] = []
        """Their number was accepted before: not stored. `add` says what they repeat; their offset is not looked at."""
        self.refused: dict[int, Overloaded] = {}
        """No place to wait: not stored. Their offset is not looked at."""

    @property
    def is_plain(self) -> bool:
        """Everything is in time: stored as it came."""
        return not (self.late or self.repeats or self.refused)


@dataclass(slots=True)
class SorterCounts:
    """Totals since the start of the process."""

    held: int = 0
    """Accepted in time; most are released in the same breath where they are numbered."""
    released: int = 0
    late: int = 0
    clamped: int = 0
    """Stamps too far ahead, which the time of arrival stands in for."""
    repeats: int = 0
    refused: int = 0
    gaps_given_up: int = 0


class Sorter(Protocol):
    """`now_ms` is the node's steady clock: it does not go back while the process runs."""

    counts: SorterCounts

    @property
    def held(self) -> int:
        """Messages that wait for their turn."""

    def held_from(self, end: int) -> int:
        """Nothing below this offset waits; `end`, the end of the log, when nothing waits at all.

        Stored with each commit, it is where a restart begins to look for what was held.
        """

    def configure(self, config: QueueConfig) -> None:
        """Takes over changed settings: what waits follows the new window from now on."""

    def decide(self, arrivals: Sequence[Stamp | None], now_ms: int, after: Sorted | None = None) -> Sorted:
        """Says what becomes of each arrival, in their order; changes nothing.

        `after`: the decision before it in the same cycle, where that one is not taken in yet.
        """

    def add(self, decision: Sorted, offsets: Sequence[int]) -> dict[int, Original]:
        """Takes the decision in: `offsets[i]` is the place of arrival `i`. Says what each repeat repeats.

        Offsets rise with the arrivals, as far as those wait. A cycle's decisions are taken in in their order, before
        anything else is asked.
        """

    def release(self, now_ms: int) -> list[int]:
        """The offsets whose turn has come, in their order; each is named once.

        A message that was settled while it waited is among them.
        """

    def release_all(self, now_ms: int) -> list[int]:
        """All that waits, in its order: for a queue that is sorted no longer."""

    def next_release_ms(self) -> int | None:
        """When `release` next has something to do, unless more arrives."""

    def records(self) -> list[OrderRecord]:
        """What changed since the last call and must be on the disk with the commit."""

    def purge(self) -> None:
        """Forgets what waits; gaps before it are given up."""

    def restore(self, records: Iterable[OrderRecord], held: Iterable[Held], now_ms: int) -> None:
        """Makes the state anew, in a sorter just made: from the latest records, and what waits by rising offset."""


class SorterSettings:
    """What both kinds of sorted queues have: the settings, the counts, and a time that never goes back."""

    def __init__(self, config: QueueConfig, label: str):
        self.counts = SorterCounts()
        self._label = label
        self._ahead_ms = 0
        self.configure(config)

    def configure(self, config: QueueConfig) -> None:
        self._window_ms = config.sort_window_ms
        self._held_max = config.sort_held_messages_max
        self._dedupe_window_ms = config.dedupe_window_ms

    def _not_before(self, floor_ms: int, now_ms: int) -> None:
        """A clock that was set back while the process was down goes on from where it was.

        Otherwise all that waits, and all that comes, would wait until the clock has caught up.
        """
        self._ahead_ms = max(0, floor_ms - now_ms)

    def _too_many(self, retry_after_ms: int) -> Overloaded:
        waiting = counted(self._held_max, "message waits for its turn", "messages wait for their turn")
        return Overloaded(
            f"queue {self._label!r}: {waiting}, the most it keeps (sort_held_messages_max)",
            retry_after_ms=max(1, retry_after_ms),
        )
