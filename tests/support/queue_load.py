"""What producers and consumers of one queue of `FaultLoad` saw, and which of it must never happen."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from typing import Any

from tests.support.keyed_history import KeyedHistory, Name, Place
from tests.support.losses import Losses


class QueueLoad:
    """The queue's history, and how long its publishes waited."""

    def __init__(self, name: str, *, losses: Losses | None, is_plain: bool = False) -> None:
        """`losses`: when something may be lost; None: never. `is_plain`: each call is sent once, without ids. Then
        unconfirmed messages may be present or not, but refused ones must not be."""
        self.name = name
        self.is_plain = is_plain
        self.refused: set[Name] = set()
        """In a plain queue: messages that were refused for certain, and must not be stored."""
        self.history = KeyedHistory(is_ordered=losses is None and not is_plain)
        self.losses = losses
        self.is_recovering = False
        """Lost messages are published again, at another position and in no particular order."""
        self.asked: dict[tuple[str, int], float] = {}
        """Unconfirmed calls, and when each was first sent."""
        self.waits: list[tuple[float, float]] = []
        """(time of confirmation, seconds since first sent) of each call."""
        self.again = 0
        """Repeated deliveries."""
        self.codes: Counter[str] = Counter()
        self.details: Counter[str] = Counter()
        """Why publishes were refused, and how often."""
        self.seen: list[str] = []
        self.latest_acked_sent_at = -math.inf
        """When the newest of the acked messages was sent."""
        self.sent_at: dict[Name, float] = {}
        self.places: dict[Name, Place] = {}
        """The position from which each message was delivered."""
        self.acked_at: dict[Name, float] = {}
        self.last_acked_at: dict[Name, float] = {}
        """For messages acked again after their ack was lost: when that was."""
        self.acks_lost = 0
        """Confirmed acks lost with a leader in mode `async`: their messages were redelivered."""
        self.confirmed_at: dict[Name, float] = {}
        self.highest: dict[str, int] = defaultdict(lambda: -1)
        """The highest number delivered, by key."""
        self.skipped: set[Name] = set()
        self.trail: defaultdict[Name, list[str]] = defaultdict(list)
        """What happened to each message, in order."""

    def note(self, name: Name, event: str) -> None:
        self.trail[name].append(f"{time.monotonic():.3f} {event}")

    def delivered(self, message: dict[str, Any], came_at: float) -> Name:
        name, place = Name(*message["body"]), (message.get("partition", 0), message["seq"])
        is_first = name not in self.places
        self.again += not is_first
        self.note(name, f"delivered at {place}, attempt {message['attempt']}")
        if name in self.refused:
            self.seen.append(f"{name} was refused, but is present")
        acked_at = self.last_acked_at.get(name, math.inf)
        # It may have arrived while its consumer was still waiting for the response to an ack.
        if came_at > acked_at and self._may_be_lost(acked_at):
            self.acks_lost += 1
        elif came_at > acked_at:
            self.seen.append(f"{name} was delivered after its ack was confirmed")
        if not self.is_recovering:
            self._judge_place(name, place, is_first=is_first)
        self.places[name] = place
        if name not in self.history.acked:
            self.history.deliver(name)
        return name

    def _may_be_lost(self, confirmed_at: float) -> bool:
        return self.losses is not None and self.losses.excuse(confirmed_at)

    def _judge_place(self, name: Name, place: Place, *, is_first: bool) -> None:
        """In mode `async` lost messages leave a gap; a message that is merely out of order does not. Messages that a
        lost leader had but never confirmed may have another position when sent again.
        What a lost leader had and never confirmed may come from another place when it is sent again.
        """
        if self.losses is None or self.is_plain:
            known = self.places.get(name, place), self.history.places.get(name, place)
            if known != (place, place):
                self.seen.append(f"{name} is at {known[0]}, at {place}, at {known[1]}")
            return
        if self.history.places.get(name, place) != place:
            self.seen.append(f"{name} was confirmed at {self.history.places[name]}, but is at {place}")
        highest = self.highest[name.key]
        if name in self.skipped:
            self.seen.append(f"{name} was delivered after {Name(name.key, highest)}")
        if is_first and name.number > highest:
            self.skipped.update(Name(name.key, number) for number in range(highest + 1, name.number))
            self.highest[name.key] = name.number

    def confirmed(self, name: Name, place: Place) -> None:
        self.note(name, f"confirmed at {place}")
        self.history.confirm(name, place)
        self.confirmed_at[name] = time.monotonic()

    @property
    def behind(self) -> int:
        """Number of messages its consumers still have to receive, as far as is known."""
        return len(self.history.places) - len(self.history.settling) - len(self.skipped)

    def settled(self, name: Name) -> None:
        self.note(name, "acked")
        self.history.ack([name])
        self.last_acked_at[name] = now = time.monotonic()
        self.acked_at.setdefault(name, now)
        self.latest_acked_sent_at = max(self.latest_acked_sent_at, self.sent_at[name])

    def lost(self) -> list[Name]:
        """Messages confirmed but never delivered, once the queue is empty."""
        return sorted(self.history.places.keys() - self.places.keys())

    def broken(self) -> list[str]:
        lost = [
            f"{name} was confirmed but never delivered"
            for name in self.lost()
            if self.is_recovering or not self._may_be_lost(self.confirmed_at[name])
        ]
        return [*self.seen, *lost, *([] if self.losses else self.history.violations(()))]

    def slowest(self, since: float) -> tuple[float, Name | None]:
        """Of the messages acked since then: the longest time from first publish to ack, and its message."""
        acked = self.acked_at.copy()  # atomic: the load's own thread keeps running
        found = [(at - self.sent_at[name], name) for name, at in acked.items() if at >= since]
        return max(found, default=(0.0, None))

    def longest_wait(self, since: float) -> float:
        """Of the publishes confirmed since then, or still waiting."""
        waited = [seconds for at, seconds in self.waits if at >= since]
        now = time.monotonic()
        return max([*waited, *(now - at for at in self.asked.copy().values())], default=0.0)
