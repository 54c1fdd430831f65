"""Counts usage by minute: a row for each principal, queue, operation, transport and outcome.

Counts once per request, frame or delivery, never per message; once for frames that were handled together. The counts
are in memory: a crash loses the current minute.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Final

from backend_store.client import timestamp
from gateway.limits import USAGE_ROWS_PER_FREE_MAX, USAGE_ROWS_PER_MINUTE_MAX
from gateway.usage.schema import LATENCY_SECONDS_BUCKETS, OTHER, SCHEMA_VERSION, MinuteRow

MINUTE_MS: Final = 60_000
MINUTES_REMEMBERED: Final = 2
"""How many completed minutes `recent` returns: a reader that calls it once a minute misses none."""

Doer = tuple[str, str, str, str, str, str]
"""Tenant, principal, queue, operation, transport, outcome."""


class Counts:
    __slots__ = ("bytes_in", "bytes_out", "latency", "messages", "requests", "seconds")

    def __init__(self) -> None:
        self.requests = self.messages = self.bytes_in = self.bytes_out = 0
        self.seconds = 0.0
        self.latency = [0] * (len(LATENCY_SECONDS_BUCKETS) + 1)


class Meter:
    """The rows of the current minute."""

    def __init__(self, node: str, clock_ms: Callable[[], int], *, rows_max: int = USAGE_ROWS_PER_MINUTE_MAX):
        self._node = node
        self._clock_ms = clock_ms
        self._rows_max = rows_max
        self._counts: dict[Doer, Counts] = {}
        self._rows_of: Counter[str] = Counter()
        """By tenant."""
        self._ended: list[MinuteRow] = []
        self._minute_ms = clock_ms() // MINUTE_MS * MINUTE_MS
        self._before: deque[tuple[int, dict[Doer, Counts]]] = deque(maxlen=MINUTES_REMEMBERED)
        self.overflowed = 0
        """How often a row of `other` was used, because the minute or the tenant had its most rows."""

    def count(
        self,
        tenant: str,
        principal: str,
        queue: str,
        operation: str,
        transport: str,
        outcome: str = "ok",
        *,
        requests: int = 1,
        messages: int = 0,
        bytes_in: int = 0,
        bytes_out: int = 0,
        seconds: float = 0.0,
    ) -> None:
        """Adds to the row of the current minute. `seconds`: how long each of the requests took."""
        doer = (tenant, principal, queue, operation, transport, outcome)
        counts = self._counts.get(doer)
        if counts is None:
            counts = self._made(doer)
        counts.requests += requests
        counts.messages += messages
        counts.bytes_in += bytes_in
        counts.bytes_out += bytes_out
        counts.seconds += seconds * requests
        counts.latency[bisect_left(LATENCY_SECONDS_BUCKETS, seconds)] += requests

    def _made(self, doer: Doer) -> Counts:
        """Adds a row, or returns that of `other`; first checks whether another minute has begun."""
        self.turn()
        tenant, free = doer[0], self._rows_max - len(self._counts)
        if free <= 0:
            self.overflowed += 1
            doer = (OTHER, OTHER, OTHER, *doer[3:])
        elif self._rows_of[tenant] >= USAGE_ROWS_PER_FREE_MAX * free:  # one tenant must not use up the rows of others
            self.overflowed += 1
            doer = (tenant, OTHER, OTHER, *doer[3:])
        counts = self._counts.get(doer)
        if counts is None:
            counts = self._counts[doer] = Counts()
            self._rows_of[doer[0]] += 1
        return counts

    def recent(self) -> list[tuple[int, Mapping[Doer, Counts]]]:
        """The counts of the last minutes and of the current one so far, each with its begin in ms."""
        self.turn()
        return [*self._before, (self._minute_ms, self._counts)]

    def turn(self) -> None:
        """Closes the minute if it is over."""
        minute_ms = self._clock_ms() // MINUTE_MS * MINUTE_MS
        if minute_ms != self._minute_ms:
            self._close()
            self._minute_ms = minute_ms

    def _close(self) -> None:
        minute = timestamp(self._minute_ms)
        counts, self._counts = self._counts, {}
        self._rows_of.clear()
        self._before.append((self._minute_ms, counts))
        for doer, one in counts.items():
            self._ended.append(
                MinuteRow(
                    SCHEMA_VERSION,
                    self._node,
                    minute,
                    *doer,
                    requests=one.requests,
                    messages=one.messages,
                    bytes_in=one.bytes_in,
                    bytes_out=one.bytes_out,
                    seconds=round(one.seconds, 6),
                    latency_counts=one.latency,
                    lossy=False,
                )
            )

    def take(self, *, unfinished: bool = False) -> list[MinuteRow]:
        """The rows of completed minutes; with `unfinished`, of the current one, too."""
        self.turn()
        if unfinished:
            self._close()
        ended, self._ended = self._ended, []
        return ended

    def marker(self, *, lossy: bool) -> MinuteRow:
        """The first row of a process. `lossy`: the previous process ended without writing all that it had counted."""
        zeros = [0] * (len(LATENCY_SECONDS_BUCKETS) + 1)
        now = timestamp(self._clock_ms() // MINUTE_MS * MINUTE_MS)
        return MinuteRow(SCHEMA_VERSION, self._node, now, "", "", "", "start", "", "ok", 0, 0, 0, 0, 0.0, zeros, lossy)
