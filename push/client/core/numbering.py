"""Between a batch and its frame: each message gets its number and its stamp, which say where it belongs in the order.

Numbers count from 1 for each queue, without gaps as far as a producer can see to it:

- A message gets its number when it first leaves. One that is cancelled before never had any.
- A repeat carries the same number and stamp, so the server knows it again.
- A refused message gives its number back. If no later number is out, the next message gets it; if one is, the number
  stays unused, for a message of now would else be sorted before those. The server waits for it for its sort window.
- A message that may have been stored (no answer, or 504) keeps its number for ever.

A queue sequenced by arrival needs none of this; its first answer says so, and from then on messages travel bare.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from push.client.core.clock import HybridClock, stamp_text, stamp_us
from push.client.errors import PushqError

OWN_FIELDS = frozenset({"producer", "producer_seq", "timestamp"})
"""What the client adds to a message by itself."""

ARRIVAL = "arrival"


class AddFields(Protocol):
    """Puts fields into a message that is encoded already."""

    def __call__(self, message: msgspec.Raw, fields: Mapping[str, Any], /) -> msgspec.Raw:
        """The message with `fields` behind its own."""


class Numbered:
    """A message that may get a number: `message` is what the user gave, `wire` is what travels."""

    __slots__ = ("is_uncertain", "message", "number", "wire")

    def __init__(self, message: msgspec.Raw) -> None:
        self.message = message
        self.wire = message
        self.number: int | None = None
        self.is_uncertain = False
        """It was sent and not answered: the server may have it under this number."""

    def unnumber(self) -> None:
        """Nothing of it was stored; it may go under another number."""
        self.number = None
        self.wire = self.message


class _Row:
    """One queue: the next number, those below it that came back, and what the server says of the queue."""

    __slots__ = ("dedupe", "free", "has_stored", "next", "sequencing")

    def __init__(self, first: int) -> None:
        self.next = first
        self.free: set[int] = set()
        self.sequencing: str | None = None
        self.dedupe: str | None = None
        self.has_stored = False

    def shrink(self) -> None:
        """The last numbers came back: they are the next ones again."""
        while self.next - 1 in self.free:
            self.next -= 1
            self.free.remove(self.next)

    def is_tail(self, numbers: set[int]) -> bool:
        """Is no number out that is later than these?"""
        last, left = self.next - 1, len(numbers)
        while left and (last in numbers or last in self.free):
            left -= last in numbers
            last -= 1
        return left == 0


class Numbering:
    """The numbers of one producer. `wall_ms` gives the computer's time; it is asked for stamps only."""

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
        """Something is published to this queue. Raises when it is one too many to keep numbers for."""
        if queue in self._rows:
            return
        if len(self._rows) >= self._queues_max:
            self._forget_one()
        self._rows[queue] = _Row(self._first(queue))

    def learned(self, queue: str, sequencing: str | None, dedupe: str | None) -> None:
        """What an answer says of the queue; it may have been changed since the last one."""
        if (row := self._rows.get(queue)) is not None:
            row.sequencing = sequencing or row.sequencing
            row.dedupe = dedupe or row.dedupe

    def drops_repeats(self, queue: str) -> bool:
        """May the server know a repeat by its id? Until it has said no, it may."""
        row = self._rows.get(queue)
        return row is None or row.dedupe != "none"

    @property
    def next_numbers(self) -> dict[str, int]:
        """For each queue that was published to, the number its next message will have."""
        return {queue: row.next for queue, row in self._rows.items()}

    # The life of a number

    def assign(self, queue: str, messages: Sequence[Numbered]) -> None:
        """These leave now: whoever has no number gets one, and a stamp, where the queue may need them."""
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
        """The server has these: a gap below them can be closed no more."""
        row = self._rows.get(queue)
        if row is None or self._is_bare(row):
            return
        numbers = [message.number for message in messages if message.number is not None]
        row.has_stored |= bool(numbers)
        if row.free and numbers:
            last = max(numbers)
            row.free = {number for number in row.free if number > last}

    def refused(self, queue: str, failed: Iterable[Numbered], again: Sequence[Numbered] = ()) -> None:
        """None of these was stored: `failed` are given up, `again` go once more, with new numbers if possible."""
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
        """These were sent, and nobody knows what became of them."""
        for message in messages:
            message.is_uncertain = True

    def unknown_to_server(self, queue: str, messages: Sequence[Numbered]) -> bool:
        """The server refused the fields that the client added: it is older than they are, so it can do without.

        True when the messages may go again, bare. Once a number was stored, such a refusal is about something else.
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
        """A delivered message carried this stamp: what is published from now on is later."""
        if isinstance(stamp, str) and (time_us := stamp_us(stamp)) is not None:
            self._clock.merge(time_us, self._wall_ms())

    def _is_bare(self, row: _Row) -> bool:
        return row.sequencing == ARRIVAL and not self._is_always

    def _first(self, queue: str) -> int:
        return self._first_number if isinstance(self._first_number, int) else self._first_number.get(queue, 1)

    def _forget_one(self) -> None:
        """Make room. Numbers that a server counts on are never forgotten: a second 1 would be dropped as a repeat."""
        for queue, row in self._rows.items():
            if not row.has_stored and (self._is_bare(row) or row.next == self._first(queue)):
                del self._rows[queue]
                return
        raise PushqError(f"one client numbers the messages of {self._queues_max} queues at most; connect another one")
