"""Admission control of this process: new sockets at a limited rate, publishes as long as there is room, less under
load.

The gateway measures and sets the level. Every transport checks here before it accepts work, so that a refusal costs
little and changes nothing: the request may be sent again as it is.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Final, Literal

from backend_store.model import Overloaded, QueueConfig
from backend_store.words import counted
from push.limits import (
    ACCEPTS_BURST_DEFAULT,
    ACCEPTS_PER_SECOND_DEFAULT,
    REFUSED_PUBLISH_MS_MAX,
    REFUSED_PUBLISH_MS_MIN,
    REFUSED_SOCKET_MS_MAX,
    REFUSED_SOCKET_MS_MIN,
    UNCONFIRMED_BYTES_MAX,
)
from throttling.admission import Level
from throttling.census import Who, network_of
from throttling.pace import FairPace
from throttling.room import Room

Stage = Literal["connection", "socket", "subscribe", "browse", "publish", "call"]
Reason = Literal["load", "pace", "strangers", "full", "address", "backlog", "room", "line"]

TAKES_ALL: Final = 0
TAKES_DURABLE: Final = 1
"""Publishes whose answer does not wait for the disk are refused: their producers would not slow down by themselves."""
TAKES_NONE: Final = 2


class Intake:
    """The level, rates and refusal counts of a process. Given to its `Hub`; the gateway sets the level."""

    def __init__(
        self,
        *,
        accepts_per_s: int = ACCEPTS_PER_SECOND_DEFAULT,
        accepts_burst: int = ACCEPTS_BURST_DEFAULT,
        unconfirmed_bytes_max: int = UNCONFIRMED_BYTES_MAX,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.level = Level.NORMAL
        self.publishes = TAKES_ALL
        """Read before each publish: unless it is 0, `check_publish` is called."""
        self.is_tight = False
        """Whether publishes were refused a moment ago: if so, a publish's head is decoded before the whole of it."""
        self._refused_since = False
        self.credit_shift = 0
        """By how many bits consumers' credit is cut."""
        self.room = Room(unconfirmed_bytes_max)
        self.refused: Counter[tuple[Stage, Reason]] = Counter()
        self.readers_cut = 0
        """HTTP connections ended because their peer did not read its answer."""
        self.bodies_cut = 0
        """HTTP connections ended because their peer went on sending a body after it was answered."""
        self.heads_refused: Counter[str] = Counter()
        """HTTP connections ended because of a request's head, by what was wrong with it."""
        self.accepts_per_s = accepts_per_s
        self.accepts_burst = accepts_burst
        self._known = FairPace(rate=accepts_per_s, burst=accepts_burst)
        """The pace of clients that showed a valid credential, by principal."""
        self._strangers = FairPace(rate=accepts_per_s, burst=accepts_burst)
        """The pace of all others, by address: however many they are, they take nothing from authenticated clients."""
        self._clock_ns = clock_ns
        self._chance = chance
        self._why = ""
        self._backlog_ms: float | None = None

    def set_level(self, level: Level, why: str) -> None:
        self.level, self._why = level, why
        self.credit_shift = int(level >= Level.NO_NEW_SOCKETS)
        self._set_publishes()

    def set_backlog(self, waited_ms: float | None) -> None:
        """Refuses new publishes, because publishes wait `waited_ms` for the disk; None: takes them."""
        self._backlog_ms = waited_ms
        self._set_publishes()

    def _set_publishes(self) -> None:
        if self.level >= Level.NO_PUBLISHES or self._backlog_ms is not None:
            self.publishes = TAKES_NONE
        else:
            self.publishes = TAKES_DURABLE if self.level >= Level.NO_REPLAYS else TAKES_ALL

    def met_end(self) -> None:
        """Notes that a publish was refused because a queue's inbox is full."""
        self.is_tight = self._refused_since = True

    def look(self) -> None:
        """Called periodically: once no publishes are refused any more, they are decoded whole again."""
        self.is_tight = self._refused_since or self.publishes != TAKES_ALL
        self._refused_since = False

    @property
    def holds_replays(self) -> bool:
        return self.level >= Level.NO_REPLAYS

    # --------------------------------------------------------------------------------------------------- questions

    def refusal_of_socket(self, connections: int, connections_max: int) -> Overloaded | None:
        """Why no WebSocket or SSE stream can come in now, whichever client asks; checked before authentication."""
        if self.level >= Level.NO_NEW_SOCKETS:
            return self._socket("load", f"no new connections right now: {self._why}")
        if connections >= connections_max:
            return self._socket(
                "full", f"{counted(connections, 'connection is', 'connections are')} open, the limit of this process"
            )
        return None

    def refusal_by_pace(self, who: Who) -> Overloaded | None:
        """Why a new WebSocket or SSE stream comes too soon; None lets it in, and counts it on the client's account."""
        now_ns = self._clock_ns()
        if who.principal:
            if not self._known.admits(now_ns, who.principal):
                return self._socket("pace", f"more than {self.accepts_per_s} new connections per second")
        elif not self._strangers.admits(now_ns, network_of(who.address)):
            detail = f"more than {self.accepts_per_s} new unauthenticated connections per second"
            return self._socket("strangers", detail)
        return None

    def _socket(self, reason: Reason, detail: str) -> Overloaded:
        self.refused["socket", reason] += 1
        return Overloaded(detail, retry_after_ms=self._between(REFUSED_SOCKET_MS_MIN, REFUSED_SOCKET_MS_MAX))

    def check_publish(self, config: QueueConfig) -> None:
        """Raises `Overloaded` for a publish that is not taken now."""
        if self._backlog_ms is not None:
            raise self.refusal("publish", "backlog", f"publishes wait {self._backlog_ms:.0f} ms for the disk")
        if self.publishes == TAKES_NONE or config.durability == "relaxed":
            raise self.refusal("publish", "load", f"no publishes right now: {self._why}")

    def check_subscribe(self) -> None:
        """Raises `Overloaded` at a level that takes only what ends messages."""
        if self.level >= Level.NO_PUBLISHES:
            raise self.refusal("subscribe", "load", f"no new subscriptions right now: {self._why}")

    def take(self, tenant: str, size: int) -> None:
        """Takes room for a publish of `size` bytes, until `room.give`. Raises `Overloaded`."""
        if not self.room.take(tenant, size):
            raise self.no_room(tenant, size)

    def no_room(self, tenant: str, size: int) -> Overloaded:
        used, all_of_it = self.room.used, self.room.bytes_max
        detail = (
            f"no room for {size} bytes of tenant {tenant!r}: {used} of {all_of_it} bytes are waiting to be confirmed"
        )
        return self.refusal("publish", "room", detail)

    def why_not_ready(self) -> Overloaded:
        return Overloaded(f"publishes are refused, acks still work: {self._why}")

    def overloaded(self, stage: Stage, what: str) -> Overloaded:
        """The refusal of something that this level does not take."""
        return self.refusal(stage, "load", f"no {what} right now: {self._why}")

    def refusal(self, stage: Stage, reason: Reason, detail: str) -> Overloaded:
        """Counts a refusal and returns its error. The retry time is random, so that callers do not come back all at
        once."""
        self.refused[stage, reason] += 1
        if stage == "publish":
            self.met_end()
        return Overloaded(detail, retry_after_ms=self._between(REFUSED_PUBLISH_MS_MIN, REFUSED_PUBLISH_MS_MAX))

    def _between(self, low: int, high: int) -> int:
        return low + round(self._chance() * (high - low))
