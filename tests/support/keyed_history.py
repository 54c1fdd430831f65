"""What clients of a strictly ordered queue saw of its keys, and the rules it must satisfy whatever moved meanwhile.

A message is named by its key and its number within that key, from 0. A producer sends the messages of a key in order,
and after a crash repeats the unconfirmed ones before anything newer; the queue drops duplicates. So the first
deliveries of a key are numbered without gaps. Its own tests forge a history for each kind of violation.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple


class Name(NamedTuple):
    key: str
    number: int

    def __str__(self) -> str:
        return f"{self.key}#{self.number}"


Place = tuple[int, int]
"""Partition and offset."""


@dataclass
class KeyedHistory:
    is_ordered: bool = True
    """Whether the first deliveries of a key must be in order."""
    sent: Counter[str] = field(default_factory=Counter)
    """Number of messages sent, by key."""
    places: dict[Name, Place] = field(default_factory=dict)
    """Position of every confirmed message."""
    first: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    """The number to be delivered next for the first time, by key."""
    settling: set[Name] = field(default_factory=set)
    """Acks that were sent, with or without a response."""
    acked: set[Name] = field(default_factory=set)
    seen: list[str] = field(default_factory=list)
    """Violations noticed so far."""

    def next(self, key: str) -> Name:
        """The next message of a key, which is being sent now."""
        self.sent[key] += 1
        return Name(key, self.sent[key] - 1)

    def confirm(self, name: Name, place: Place) -> None:
        known = self.places.setdefault(name, place)
        if known != place:
            self.seen.append(f"{name} was confirmed at {known} and at {place}")

    def deliver(self, name: Name) -> None:
        awaited = self.first[name.key]
        if name.number >= self.sent[name.key]:
            self.seen.append(f"{name} was delivered, but nobody sent it")
        elif self.is_ordered and name.number > awaited:
            self.seen.append(f"{name} was delivered before {Name(name.key, awaited)}")
        elif name in self.acked:
            self.seen.append(f"{name} was delivered after its ack was confirmed")
        self.first[name.key] = max(awaited, name.number + 1)

    def settle(self, names: Iterable[Name]) -> None:
        self.settling.update(names)

    def ack(self, names: Iterable[Name]) -> None:
        self.acked.update(names)

    def violations(self, present: Iterable[Name]) -> list[str]:
        """`present`: the messages now in the queue."""
        there = Counter(present)
        lost = sorted(self.places.keys() - self.settling - there.keys())
        doubled = sorted(name for name, count in there.items() if count > 1)
        back = sorted(self.acked & there.keys())
        invented = sorted(name for name in there if name.number >= self.sent[name.key])
        return [
            *self.seen,
            *(f"{name} was confirmed and never acked, but is missing" for name in lost),
            *(f"{name} is stored {there[name]} times" for name in doubled),
            *(f"{name} is present after its ack was confirmed" for name in back),
            *(f"{name} is present, but nobody sent it" for name in invented),
        ]
