"""Measures event-loop lag, memory and the wait for the disk, and sets the load level of the process's intake.

`throttling.admission` decides the level; this module reads the numbers and logs changes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final

import structlog

from backend_store.client import Store
from backend_store.model import Overloaded
from gateway.admission.loop_lag import LoopLag
from gateway.admission.memory import used_bytes
from gateway.config.settings import OverloadSettings
from gateway.limits import OVERLOAD_LOOK_SECONDS
from push.delivery.hub import Hub
from push.intake import Intake
from throttling.admission import Admission, Backlog, Level, Readings
from throttling.config import DISK_HOT_FRACTION, DISK_WARN_FRACTION

log = structlog.get_logger("pushq.overload")

MEASURED_EVERY: Final = 5
"""Checks of the disk's queue per read of memory and lag."""
CLOSED_EVERY: Final = 10
"""Checks of the disk's queue per round that closes the slowest readers: a second."""

SETTLING: Final = frozenset(("POST", f"/v1/queues/{{queue}}/{verb}") for verb in ("ack", "nack", "extend"))
"""Calls that end messages or keep them from being delivered again. They are never refused under load."""
BROWSING: Final = frozenset(
    ("GET", path)
    for path in (
        "/v1/queues",
        "/v1/queues/{queue}/messages",
        "/v1/queues/{queue}/partitions/{partition}/messages",
        "/v1/queues/{queue}/groups",
        "/v1/queues/{queue}/redrives",
        "/v1/keys",
        "/v1/tenants",
    )
)
"""Calls that read much and change nothing."""
EVENTS: Final = "/v1/queues/{queue}/events"


def refusal_of_call(intake: Intake, method: str, path: str) -> Overloaded | None:
    """Why a call is refused at the current load level; None if it is taken."""
    call = ("GET" if method == "HEAD" else method, path)
    if intake.level >= Level.NO_PUBLISHES and call not in SETTLING and method not in ("DELETE", "OPTIONS"):
        return intake.overloaded("call", "calls but acks, nacks, extends and deletions")
    if intake.level >= Level.NO_REPLAYS and call in BROWSING:
        return intake.overloaded("browse", "lists and peeks")
    return None


class Overload:
    """The overload control of one process; checks ten times a second. `readings`, `waited_ms` and `disk_fraction` are
    the latest values."""

    def __init__(
        self,
        store: Store,
        hub: Hub,
        lag: LoopLag,
        settings: OverloadSettings,
        *,
        memory_bytes_max: int,
        used: Callable[[], int] = used_bytes,
    ) -> None:
        self.readings = Readings()
        self.waited_ms = 0.0
        self.disk_fraction = 0.0
        self.changes: Counter[Level] = Counter()
        """How often each level was reached."""
        self.closed_slow = 0
        self.memory_bytes_max = memory_bytes_max
        self._node = store.node
        self._hub = hub
        self._lag = lag
        self._used = used
        self._admission = Admission(lag_ms_max=settings.lag_ms_max)
        self._backlog = Backlog(sojourn_ms_max=settings.sojourn_ms_max)
        self._warned_of_disk = 0.0
        self._node.committer.on_waited = self.waited

    async def watch(self) -> None:
        """Checks periodically. Runs until cancelled."""
        looks = 0
        while True:
            await asyncio.sleep(OVERLOAD_LOOK_SECONDS)
            looks += 1
            self._hub.intake.look()
            # A disk that hangs starts no commit, and so never reports how long publishes wait.
            self.waited(self._node.committer.waited_ms)
            if looks % MEASURED_EVERY == 0:
                self.measure()
            if looks % CLOSED_EVERY == 0 and self._admission.level >= Level.NO_REPLAYS:
                self.closed_slow += self._hub.close_slowest()

    def measure(self) -> None:
        """Reads lag, memory and disk, and sets the level."""
        self.readings = Readings(
            lag_ms=self._lag.p99_seconds * 1000, memory_fraction=self._used() / self.memory_bytes_max
        )
        before = self._admission.level
        level = self._admission.observe(self.readings, self._node.steady_ms())
        if level != before:
            self._changed(before, level)
        elif level:
            self._hub.intake.set_level(level, self._admission.why(self.readings))
        self._look_at_disk()

    def _changed(self, before: Level, level: Level) -> None:
        self.changes[level] += 1
        why = self._admission.why(self.readings) if level else ""
        self._hub.intake.set_level(level, why)
        tell = log.warning if level > before else log.info
        tell(
            "overload level changed",
            reached=level.name.lower(),
            before=before.name.lower(),
            lag_ms=round(self.readings.lag_ms),
            memory_fraction=round(self.readings.memory_fraction, 3),
        )

    def waited(self, waited_ms: float) -> None:
        """Takes how long the oldest publish has waited, in ms; called when a commit begins or none is needed."""
        self.waited_ms = waited_ms
        was_shedding = self._backlog.is_shedding
        commit_ms = self._node.writer.commit_seconds.last * 1000
        if self._backlog.observe(waited_ms, commit_ms, self._node.steady_ms()):
            self._hub.intake.set_backlog(waited_ms)
            if not was_shedding:
                log.debug("publishes are refused until the disk catches up", waited_ms=waited_ms)
        elif was_shedding:
            self._hub.intake.set_backlog(None)

    def _look_at_disk(self) -> None:
        """Warns the operator in time that the disk fills up. The store itself refuses publishes with `storage-full`."""
        space = self._node.space
        self.disk_fraction = space.space.used_fraction if space is not None else 0.0
        reached = max(
            (mark for mark in (DISK_WARN_FRACTION, DISK_HOT_FRACTION) if self.disk_fraction >= mark), default=0.0
        )
        if reached > self._warned_of_disk:
            stop = space.publish_stop_fraction if space is not None else None
            log.warning("the disk is filling up", used_fraction=round(self.disk_fraction, 3), publishes_stop_at=stop)
        self._warned_of_disk = reached
