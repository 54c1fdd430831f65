"""Sorted queues, where `sequencing` is not `arrival`: between log and delivery a message is held here for its turn.

This is the contract of `by_clock` and `by_producer`. In each commit cycle the partition calls `decide` with the
arrivals, assigns offsets, passes them to `add`, takes the messages whose turn has come by `release`, and stores
`records` and the released order together with the messages. The state of a sorter is an overlay: it is ahead of the
disk by the commit in flight. If a commit fails, the state is invalid, and `restore` rebuilds it from what is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from backend_store.core.reorder.records import OrderRecord
from backend_store.model import Original, Overloaded, QueueConfig, Stamp
from backend_store.words import counted

NO_MESSAGE = -1
"""Stands for an offset: the message is not stored, because its id is a duplicate, but its number counts as used."""


class Held(NamedTuple):
    """A message whose turn had not come when the process ended: in the log, not ended, not late, never released."""

    offset: int
    stamp: Stamp | None
    arrived_ms: int
    """The time in its chunk's header, which is the `now_ms` of the decision about it."""


class Sorted:
    """The decision about some arrivals, by their index. Arrivals that are in no list are held for their turn."""

    __slots__ = ("now_ms", "late", "repeats", "refused")

    def __init__(self, now_ms: int):
        self.now_ms = now_ms
        self.late: list[int] = []
        """Later messages were released before them: stored, flagged and moved elsewhere. They need offsets as well."""
        self.repeats: list[int] = []
        """Their number was accepted before: not stored. `add` returns their originals; their offsets are not read."""
        self.refused: dict[int, Overloaded] = {}
        """There was no room to hold them: not stored. Their offsets are not read."""

    @property
    def is_plain(self) -> bool:
        """True if all arrivals are in time, so that all are stored as they came."""
        return not (self.late or self.repeats or self.refused)


@dataclass(slots=True)
class SorterCounts:
    """Totals since the start of the process."""

    held: int = 0
    """Accepted in time; most numbered messages are released in the same cycle."""
    released: int = 0
    late: int = 0
    clamped: int = 0
    """Stamps too far ahead, which were replaced by the time of arrival."""
    repeats: int = 0
    refused: int = 0
    gaps_given_up: int = 0


class Sorter(Protocol):
    """Decides the order of a sorted queue in one partition; the partition owns it.

    `now_ms` is the node's steady clock: it does not go back while the process runs.
    """

    counts: SorterCounts

    @property
    def held(self) -> int:
        """Messages that wait for their turn."""

    def held_from(self, end: int) -> int:
        """Returns an offset below which no message is held; `end`, the end of the log, if none is held at all.

        It is stored with each commit, and a restart searches for held messages from there.
        """

    def configure(self, config: QueueConfig) -> None:
        """Applies changed settings: held messages follow the new window from now on."""

    def decide(self, arrivals: Sequence[Stamp | None], now_ms: int, after: Sorted | None = None) -> Sorted:
        """Decides about each arrival, in their order; changes nothing.

        `after`: the previous decision of the same cycle, if it was not passed to `add` yet.
        """

    def add(self, decision: Sorted, offsets: Sequence[int]) -> dict[int, Original]:
        """Applies the decision: `offsets[i]` is the offset of arrival `i`. Returns the original of each duplicate.

        Offsets rise with the arrivals that are held. A cycle's decisions are applied in their order, before any other
        method is called.
        """

    def release(self, now_ms: int) -> list[int]:
        """Returns the offsets whose turn has come, in their order, each once.

        Messages that were settled while they were held are among them.
        """

    def release_all(self, now_ms: int) -> list[int]:
        """Returns all held messages, in their order: for a queue that is no longer sorted."""

    def next_release_ms(self) -> int | None:
        """Returns when `release` next has something to do, unless more messages arrive; None: never."""

    def records(self) -> list[OrderRecord]:
        """Returns what changed since the last call and must be stored with the commit."""

    def purge(self) -> None:
        """Forgets the held messages; gaps before them are given up."""

    def restore(self, records: Iterable[OrderRecord], held: Iterable[Held], now_ms: int) -> None:
        """Rebuilds the state of a new sorter from the latest records, and the held messages by ascending offset."""


class SorterSettings:
    """What both sorters share: the settings, the counts, and a time that never goes back."""

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
        """Lets a clock that was set back while the process was down continue from where it was.

        Otherwise all held and all new messages would wait until the clock has caught up.
        """
        self._ahead_ms = max(0, floor_ms - now_ms)

    def _too_many(self, retry_after_ms: int) -> Overloaded:
        waiting = counted(
            self._held_max, "message is waiting for its position", "messages are waiting for their position"
        )
        return Overloaded(
            f"queue {self._label!r}: {waiting}, the maximum (sort_held_messages_max)",
            retry_after_ms=max(1, retry_after_ms),
        )
