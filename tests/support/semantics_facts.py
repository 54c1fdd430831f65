"""What the reference queue knows: its messages, and everything that one commit makes true together."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from backend_store.model import Stamp

Receipt = tuple[str, int]
"""(token, the message's number)."""

FREE = ("ready", "delayed", "scheduled", "held")
NO_STAMP = Stamp()


@dataclass
class Message:
    number: int
    """Identifies its body, wherever it is."""
    priority: int = 0
    key: str | None = None
    id: bytes | None = None
    stamp: Stamp | None = None
    scheduled_ms: int = 0
    expires_ms: int = 0
    view: str = "main"
    """main · dead · late · gone"""
    state: str = "ready"
    """ready · leased · returned (given back, not yet durable) · delayed · scheduled · held (sorted) · settling"""
    end: str = ""
    """Why it is settling or gone: acked, purged, or the reason counted in the metrics."""
    was: str = ""
    """Its state before settling."""
    attempt: int = 0
    history: list[tuple[int, int, str, str | None]] = field(default_factory=list)
    token: str = ""
    deadline_ms: int = 0
    due_ms: int = 0
    holder: int = -1
    place: int = 0
    """Its rank by arrival, or by release in a sorting queue."""
    is_head: bool = False
    is_late: bool = False
    """Whether it is flagged as late, which it stays until redriven."""
    is_touched: bool = False
    """Whether it was handed out before, and may therefore be out of order."""
    life: int = 0
    """Incremented when it moves or ends: decisions about an earlier life are void."""
    looks: dict[int, int] = field(default_factory=dict)
    """When the queue checked it after its expiry: number of commits so far → time."""
    letter: dict[str, Any] | None = None

    def next_life(self, view: str, **changes: Any) -> Message:
        fresh = Message(self.number, self.priority, self.key, self.id, self.stamp, view=view, life=self.life + 1)
        return replace(fresh, **changes)


class Waiting(NamedTuple):
    arrived_ms: int
    stamp: Stamp
    number: int
    """Its message's number; -1 if only the producer's number counts, as it repeats a known id."""


@dataclass
class Order:
    """What a sorting queue knows of its producers, and the stamp of the last message released."""

    accepted: dict[str, dict[int, int]] = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)
    waiting: list[Waiting] = field(default_factory=list)
    """In order of arrival."""
    watermark: Stamp = NO_STAMP


@dataclass
class Facts:
    """Everything that is true together."""

    messages: dict[int, Message] = field(default_factory=dict)
    ids: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    """Id → (number of the first message with it, its time of arrival)."""
    ended: Counter[str] = field(default_factory=Counter)
    acked: int = 0
    order: Order = field(default_factory=Order)
    places: int = 0

    def copy(self) -> Facts:
        messages = {n: replace(m, history=list(m.history)) for n, m in self.messages.items()}
        return Facts(messages, dict(self.ids), Counter(self.ended), self.acked, deepcopy(self.order), self.places)

    def live(self, view: str) -> int:
        return sum(m.view == view for m in self.messages.values())

    def next_place(self) -> int:
        self.places += 1
        return self.places


def rank(m: Message) -> int:
    """Sort key of delivery. A late message at the head comes before all others until it has been handed out."""
    if m.is_head:
        return 0 if m.is_touched else 1
    return m.priority if m.view == "main" else 0


def is_before(a: Message, b: Message) -> bool:
    """Whether both are untouched and unscheduled, and `a` comes earlier at the same priority."""
    plain = not (a.is_touched or a.scheduled_ms or b.scheduled_ms) and a.is_head == b.is_head
    return plain and a.priority == b.priority and a.place < b.place


def stamp_of(m: Message) -> Stamp:
    assert m.stamp is not None
    return m.stamp
