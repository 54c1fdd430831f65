"""Numbers messages before they are sent: each gets a producer number and a stamp, which define its place in the order.

Numbers count from 1 for each queue, without gaps as far as the producer can avoid them:

- A message gets its number when it is first sent. One that is cancelled before never has any.
- A repeat carries the same number and stamp, so the server recognizes it.
- A refused message gives its number back. If no later number is in use, the next message gets it; otherwise the number
  stays unused, as a new message with it would be sorted before the later ones. The server waits for it for its sort
  window.
- A message that may have been stored (no answer, or 504) keeps its number for ever.

A queue sequenced by arrival needs none of this; its first answer says so, and from then on messages carry no number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from push.client.core.clock import HybridClock, stamp_text, stamp_us
from push.client.errors import PushqError

OWN_FIELDS = frozenset({"producer", "producer_seq", "timestamp"})
"""The fields that the client adds to a message by itself."""

ARRIVAL = "arrival"


class AddFields(Protocol):
    """Adds fields to a message that is encoded already."""

    def __call__(self, message: msgspec.Raw, fields: Mapping[str, Any], /) -> msgspec.Raw:
        """The message with `fields` after its own."""


class Numbered:
    """A message that may get a number: `message` is what the user gave, `wire` is what is sent."""

    __slots__ = ("is_uncertain", "message", "number", "wire")

    def __init__(self, message: msgspec.Raw) -> None:
        self.message = message
        self.wire = message
        self.number: int | None = None
        self.is_uncertain = False
        """It was sent and not answered: the server may have it under this number."""

    def unnumber(self) -> None:
        """Takes the number away: nothing of the message was stored, and it may be sent with another one."""
        self.number = None
        self.wire = self.message


class _Row:
    """One queue: the next number, unused numbers below it, and what the server said about the queue."""

    __slots__ = ("dedupe", "free", "has_stored", "next", "sequencing")

    def __init__(self, first: int) -> None:
        self.next = first
        self.free: set[int] = set()
        self.sequencing: str | None = None
        self.dedupe: str | None = None
        self.has_stored = False

    def shrink(self) -> None:
        """Takes unused numbers at the end as the next ones again."""
        while self.next - 1 in self.free:
            self.next -= 1
            self.free.remove(self.next)

    def is_tail(self, numbers: set[int]) -> bool:
        """Whether no number later than these is in use."""
        last, left = self.next - 1, len(numbers)
        while left and (last in numbers or last in self.free):
            left -= last in numbers
            last -= 1
        return left == 0


class Numbering:
    """The numbers of one producer. `wall_ms` returns the computer's time; it is called for stamps only."""

    def __init__(
        self,
        producer: str,
        clock: HybridClock,
        wall_ms: Callable[[], int],
        add_fields: AddFields,
        *,
        queues_max: int,
        first_number: int | Mapping[str, int] = 1,
        is_always: bool = False,
    ) -> None:
        self.producer = producer
        self._clock = clock
        self._wall_ms = wall_ms
        self._add_fields = add_fields
        self._first_number = first_number
        self._is_always = is_always
        self._queues_max = queues_max
        self._rows: dict[str, _Row] = {}

    # What is known of a queue

    def open(self, queue: str) -> None:
        """Starts to keep numbers for a queue. Raises `PushqError` if there are too many queues to keep numbers for."""
        if queue in self._rows:
            return
        if len(self._rows) >= self._queues_max:
            self._forget_one()
        self._rows[queue] = _Row(self._first(queue))

    def learned(self, queue: str, sequencing: str | None, dedupe: str | None) -> None:
        """Notes what an answer says about the queue; the queue may have been changed since the last one."""
        if (row := self._rows.get(queue)) is not None:
            row.sequencing = sequencing or row.sequencing
            row.dedupe = dedupe or row.dedupe

    def drops_repeats(self, queue: str) -> bool:
        """Whether the server may recognize a duplicate by its id: yes, until it has said no."""
        row = self._rows.get(queue)
        return row is None or row.dedupe != "none"

    @property
    def next_numbers(self) -> dict[str, int]:
        """For each queue that was published to, the number of its next message."""
        return {queue: row.next for queue, row in self._rows.items()}

    # The life of a number

    def assign(self, queue: str, messages: Sequence[Numbered]) -> None:
        """Numbers and stamps the messages that are about to be sent and have no number yet, if the queue may need
        it."""
        row = self._rows.get(queue)
        if row is None:
            row = self._rows[queue] = _Row(self._first(queue))
        if self._is_bare(row):
            return
        for message in messages:
            if message.number is None:
                message.number = row.next
                row.next += 1
                fields = {
                    "producer": self.producer,
                    "producer_seq": message.number,
                    "timestamp": stamp_text(self._clock.tick(self._wall_ms())),
                }
                message.wire = self._add_fields(message.message, fields)

    def stored(self, queue: str, messages: Iterable[Numbered]) -> None:
        """The server has these messages: gaps below their numbers can no longer be filled."""
        row = self._rows.get(queue)
        if row is None or self._is_bare(row):
            return
        numbers = [message.number for message in messages if message.number is not None]
        row.has_stored |= bool(numbers)
        if row.free and numbers:
            last = max(numbers)
            row.free = {number for number in row.free if number > last}

    def refused(self, queue: str, failed: Iterable[Numbered], again: Sequence[Numbered] = ()) -> None:
        """None of these was stored: `failed` are given up, `again` are sent once more, with new numbers if possible."""
        row = self._rows.get(queue)
        if row is None:
            return
        gone = {message.number for message in failed if message.number is not None and not message.is_uncertain}
        movable = [message for message in again if message.number is not None and not message.is_uncertain]
        if gone and row.is_tail(gone | {message.number for message in movable if message.number is not None}):
            gone |= {message.number for message in movable if message.number is not None}
            for message in movable:
                message.unnumber()
        row.free |= gone
        row.shrink()

    def uncertain(self, messages: Iterable[Numbered]) -> None:
        """These were sent, and their outcome is not known."""
        for message in messages:
            message.is_uncertain = True

    def unknown_to_server(self, queue: str, messages: Sequence[Numbered]) -> bool:
        """The server refused the fields that the client added: it is older than the fields are, and does without them.

        True if the messages may be sent again without these. Once a number was stored, such a refusal has another
        cause.
        """
        row = self._rows.get(queue)
        if row is None or row.has_stored or not all(message.number for message in messages):
            return False
        row.sequencing = ARRIVAL
        self.refused(queue, messages)
        for message in messages:
            message.unnumber()
        return True

    def seen(self, stamp: Any) -> None:
        """A delivered message has this stamp: messages published from now on get later ones."""
        if isinstance(stamp, str) and (time_us := stamp_us(stamp)) is not None:
            self._clock.merge(time_us, self._wall_ms())

    def _is_bare(self, row: _Row) -> bool:
        return row.sequencing == ARRIVAL and not self._is_always

    def _first(self, queue: str) -> int:
        return self._first_number if isinstance(self._first_number, int) else self._first_number.get(queue, 1)

    def _forget_one(self) -> None:
        """Makes room. Numbers that a server has seen are never forgotten: a second 1 would be dropped as a
        duplicate."""
        for queue, row in self._rows.items():
            if not row.has_stored and (self._is_bare(row) or row.next == self._first(queue)):
                del self._rows[queue]
                return
        raise PushqError(
            f"one client can number messages for at most {self._queues_max} queues; open another connection"
        )
