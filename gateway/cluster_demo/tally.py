"""Counts numbered messages from confirmation to ack, so that every lost or duplicated one shows, and measures gaps in
deliveries. Times are seconds on one clock, passed in by the caller.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from gateway.cluster_demo.limits import AWAY_SECONDS_MIN, BAR_SECONDS, BARS_MAX, SETTLED_SECONDS

_RECEIVED: Final = 1
_ACKED: Final = 2


@dataclass(slots=True)
class Kill:
    """A killed process, and the longest gap in deliveries since."""

    part: str
    at_s: float
    away_s: float = 0.0


@dataclass(slots=True)
class Tally:
    """Counts of the messages, which are numbered 0, 1, 2, …"""

    confirmed: int = 0
    received: int = 0
    again: int = 0
    """Redeliveries of a message whose ack was not confirmed: its lease or its connection had ended."""
    doubled: int = 0
    """Deliveries of a message after its ack was confirmed; expected to be 0."""
    next_number: int = 0
    """The number of the next message."""
    longest_away_s: float = 0.0
    kills: deque[Kill] = field(default_factory=lambda: deque(maxlen=BARS_MAX))
    _marks: bytearray = field(default_factory=bytearray)
    _on_the_way: dict[int, float] = field(default_factory=dict)
    """Number → when it was confirmed, for messages not received yet."""
    _arrived_s: float | None = None
    """When the last message arrived."""
    _bars: deque[list[int]] = field(default_factory=deque)
    _bar: int = 0
    """The number of the last bar: time divided by `BAR_SECONDS`."""

    def confirm(self, n: int, now_s: float) -> None:
        """The server confirmed that `n` is stored."""
        self.confirmed += 1
        if not self._mark(n) & _RECEIVED:
            self._on_the_way[n] = now_s
        self._bar_at(now_s)[0] += 1

    def receive(self, n: int, now_s: float) -> None:
        """`n` was delivered."""
        mark = self._mark(n)
        if mark & _ACKED:
            self.doubled += 1
        elif mark & _RECEIVED:
            self.again += 1
        else:
            self._marks[n] |= _RECEIVED
            self.received += 1
            self._on_the_way.pop(n, None)
            self._bar_at(now_s)[1] += 1
            self._silence_until(now_s)
            self._arrived_s = now_s

    def ack(self, n: int) -> None:
        """The server confirmed that the ack of `n` is stored."""
        self._mark(n)
        self._marks[n] |= _ACKED

    def kill(self, part: str, now_s: float) -> None:
        self.kills.append(Kill(part, now_s))

    def missing(self, now_s: float) -> int:
        """Confirmed messages that did not arrive within `SETTLED_SECONDS`."""
        return sum(now_s - at_s > SETTLED_SECONDS for at_s in self._on_the_way.values())

    def under_way(self, now_s: float) -> int:
        return len(self._on_the_way) - self.missing(now_s)

    def away_s(self, now_s: float) -> float:
        """How long no message has arrived; 0 if shorter than `AWAY_SECONDS_MIN`."""
        self._silence_until(now_s)
        silent_s = 0.0 if self._arrived_s is None else now_s - self._arrived_s
        return silent_s if silent_s >= AWAY_SECONDS_MIN else 0.0

    def bars(self, now_s: float) -> list[list[int]]:
        """[confirmed, received] for each half second of the last minute, the newest last."""
        self._bar_at(now_s)
        return [list(bar) for bar in self._bars]

    def per_second(self, now_s: float) -> float:
        """Deliveries per second over the last two whole seconds."""
        whole = self.bars(now_s)[-5:-1]
        return sum(received for _, received in whole) / (len(whole) * BAR_SECONDS) if whole else 0.0

    def _silence_until(self, now_s: float) -> None:
        if self._arrived_s is None:
            return
        silent_s = now_s - self._arrived_s
        if silent_s < AWAY_SECONDS_MIN:
            return
        self.longest_away_s = max(self.longest_away_s, silent_s)
        for kill in self.kills:
            if kill.at_s >= self._arrived_s - AWAY_SECONDS_MIN:
                kill.away_s = max(kill.away_s, silent_s)

    def _mark(self, n: int) -> int:
        if n >= len(self._marks):
            self._marks.extend(bytes(n + 1 - len(self._marks) + 4096))
        return self._marks[n]

    def _bar_at(self, now_s: float) -> list[int]:
        number = int(now_s / BAR_SECONDS)
        missed = min(number - self._bar, BARS_MAX) if self._bars else 1
        self._bars.extend([0, 0] for _ in range(missed))
        self._bar = max(self._bar, number)
        while len(self._bars) > BARS_MAX:
            self._bars.popleft()
        return self._bars[-1]
