"""What clients of a queue in strict order saw of its keys, and what must be true of it, whatever moved meanwhile.

A message is named by its key and its number there, from 0. A producer sends those of a key in their order, and after a
crash what was not confirmed once more, before anything newer; the queue drops repeats. So the first deliveries of a key
count up without a gap. Its own tests forge a history for each kind of violation.
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
    """Whether the first deliveries of a key are to be in its order."""
    sent: Counter[str] = field(default_factory=Counter)
    """By key, how many."""
    places: dict[Name, Place] = field(default_factory=dict)
    """Of all that were confirmed."""
    first: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    """By key the number that is to be delivered next for the first time."""
    settling: set[Name] = field(default_factory=set)
    """Acks that were sent, answered or not."""
    acked: set[Name] = field(default_factory=set)
    seen: list[str] = field(default_factory=list)
    """Violations, as they were noticed."""

    def next(self, key: str) -> Name:
        """The next message of a key, which is sent now."""
        self.sent[key] += 1
        return Name(key, self.sent[key] - 1)

    def confirm(self, name: Name, place: Place) -> None:
        known = self.places.setdefault(name, place)
        if known != place:
            self.seen.append(f"{name} was confirmed at {known} and at {place}")

    def deliver(self, name: Name) -> None:
        awaited = self.first[name.key]
        if name.number >= self.sent[name.key]:
            self.seen.append(f"{name} was delivered, and nobody sent it")
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
        """`present`: what the queue holds now."""
        there = Counter(present)
        lost = sorted(self.places.keys() - self.settling - there.keys())
        doubled = sorted(name for name, count in there.items() if count > 1)
        back = sorted(self.acked & there.keys())
        invented = sorted(name for name in there if name.number >= self.sent[name.key])
        return [
            *self.seen,
            *(f"{name} was confirmed, nobody acked it, and it is not there" for name in lost),
            *(f"{name} is there {there[name]} times" for name in doubled),
            *(f"{name} is there after its ack was confirmed" for name in back),
            *(f"{name} is there, and nobody sent it" for name in invented),
        ]
