"""What clients saw, and the rules it must satisfy: the judge of the crash tests.

Clients record what they sent, what was confirmed and what was delivered to them; `violations` then checks the record.
It knows nothing of the queue's internals, and its own tests forge a history for each kind of violation.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise


class Kind(enum.Enum):
    LOST = "a confirmed message that nobody acked was never delivered and is not in the queue"
    VANISHED = "a message that was delivered but never acked is not in the queue"
    RESURRECTED = "a message was delivered, or is in the queue, after its ack was confirmed"
    INVENTED = "a message that nobody sent was delivered or is in the queue"
    REFUSED_BUT_THERE = "a message whose publish was refused was delivered or is in the queue"
    DOUBLE = "a message was redelivered during its first lease"
    ATTEMPT_FELL = "a later delivery has a lower attempt number than an earlier one"
    STREAM_HOLE = "a stream reader was not given a confirmed message"
    STREAM_REPEAT = "a stream reader was given a message twice or out of order"
    STREAM_OTHER = "the stream has another message at a position than the one confirmed there"


@dataclass(frozen=True)
class Violation:
    kind: Kind
    message: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.message}: {self.kind.value} {self.detail}".rstrip()


@dataclass(frozen=True)
class Delivery:
    message: str
    attempt: int
    life: int
    """The server's life in which it happened; each life ends with a kill."""
    after_ack: bool
    consumer: str = ""


@dataclass
class QueueHistory:
    """A work queue. A message is identified by its body."""

    sent: set[str] = field(default_factory=set)
    confirmed: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    """Publishes that were definitely refused; one without a response may or may not be stored."""
    deliveries: list[Delivery] = field(default_factory=list)
    settling: set[str] = field(default_factory=set)
    """Acks that were sent, with or without a response."""
    acked: set[str] = field(default_factory=set)
    returned: set[tuple[str, int]] = field(default_factory=set)
    """(message, life) of messages that were given back."""
    life: int = 0

    def deliver(self, message: str, attempt: int, consumer: str = "", *, after_ack: bool | None = None) -> None:
        """`after_ack`: whether it arrived after its ack, if the caller knows; otherwise it arrived now."""
        is_after = message in self.acked if after_ack is None else after_ack
        self.deliveries.append(Delivery(message, attempt, self.life, is_after, consumer))

    def give_back(self, message: str) -> None:
        self.returned.add((message, self.life))

    def violations(self, present: Iterable[str]) -> list[Violation]:
        """`present`: the messages now in the queue."""
        there = set(present)
        return [*self._missing(there), *self._surplus(there), *self._deliveries()]

    def _missing(self, there: set[str]) -> Iterator[Violation]:
        delivered = {d.message: d for d in self.deliveries}  # the last delivery of each
        for message in sorted(self.confirmed - self.settling - there - delivered.keys()):
            yield Violation(Kind.LOST, message)
        for message in sorted(delivered.keys() - self.settling - there):
            yield Violation(Kind.VANISHED, message, f"(last in attempt {delivered[message].attempt})")

    def _surplus(self, there: set[str]) -> Iterator[Violation]:
        seen = there | {d.message for d in self.deliveries}
        for message in sorted(seen - self.sent):
            yield Violation(Kind.INVENTED, message)
        for message in sorted(seen & self.refused):
            yield Violation(Kind.REFUSED_BUT_THERE, message)
        for message in sorted(there & self.acked):
            yield Violation(Kind.RESURRECTED, message, "(in the queue)")

    def _deliveries(self) -> Iterator[Violation]:
        by_message: dict[str, list[Delivery]] = defaultdict(list)
        for delivery in self.deliveries:
            by_message[delivery.message].append(delivery)
        for message, deliveries in by_message.items():
            if any(d.after_ack for d in deliveries):
                yield Violation(Kind.RESURRECTED, message, "(delivered)")
            for before, after in pairwise(deliveries):
                yield from self._pair(before, after)

    def _pair(self, before: Delivery, after: Delivery) -> Iterator[Violation]:
        if after.attempt < before.attempt:
            yield Violation(Kind.ATTEMPT_FELL, after.message, f"({before.attempt}, then {after.attempt})")
        # Within one life, only a message that was given back may be redelivered, with a higher attempt.
        came_back = (after.message, after.life) in self.returned and after.attempt > before.attempt
        if after.life == before.life and not came_back:
            yield Violation(Kind.DOUBLE, after.message, f"({before}, then {after})")


@dataclass
class StreamHistory:
    """A stream: the message confirmed at each position, and what each reader was given."""

    sent: set[str] = field(default_factory=set)
    confirmed: dict[int, str] = field(default_factory=dict)
    readers: dict[str, list[tuple[int, str]]] = field(default_factory=lambda: defaultdict(list))

    def read(self, reader: str, seq: int, message: str) -> None:
        self.readers[reader].append((seq, message))

    def violations(self, whole: Iterable[str] = ()) -> list[Violation]:
        """`whole`: readers that began at the earliest message and have reached the end."""
        found: list[Violation] = []
        for name, given in self.readers.items():
            found += self._reader(given, to_the_end=name in set(whole))
        return found

    def _reader(self, given: list[tuple[int, str]], *, to_the_end: bool) -> Iterator[Violation]:
        for (before, _), (after, message) in pairwise(given):
            if after <= before:
                yield Violation(Kind.STREAM_REPEAT, message, f"(at {after} after {before})")
        for seq, message in given:
            if message not in self.sent:
                yield Violation(Kind.INVENTED, message)
            elif self.confirmed.get(seq, message) != message:
                yield Violation(Kind.STREAM_OTHER, message, f"(at {seq}, where {self.confirmed[seq]} was confirmed)")
        positions = {seq for seq, _ in given}
        first = 0 if to_the_end else min(positions, default=0)
        last = max(self.confirmed, default=-1) if to_the_end else max(positions, default=-1)
        for seq, message in sorted(self.confirmed.items()):
            if first <= seq <= last and seq not in positions:
                yield Violation(Kind.STREAM_HOLE, message, f"(at {seq})")
