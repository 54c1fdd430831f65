"""A session: the heartbeat of one process at its coordinator, and the time until which the process may rely on it.

Each confirmed keep-alive counts from the moment it was *sent*, so the holder's own idea of its time is never longer
than the coordinator's. Still, a session is a hint: a process may be stopped between reading the clock and acting, and a
coordinator may end a session early. What must not go wrong is fenced: see `fencing`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import structlog

from backend_store.cluster.core.values import SessionId
from backend_store.cluster.limits import (
    ETCD_READ_SECONDS_MAX,
    FAREWELL_SECONDS_MAX,
    KEEP_ALIVE_SECONDS,
    KEEP_ALIVES_IN_FLIGHT_MAX,
    SESSION_HELD_FRACTION,
    UNANSWERED_SECONDS_MAX,
)
from backend_store.model import OutcomeUnknown, PushqError, Unavailable

log = structlog.get_logger("pushq.session")


class Session:
    """Made by a coordinator's `open_session`. Once lost it stays lost."""

    def __init__(
        self,
        id: SessionId,
        ttl_s: int,
        *,
        sent_at: float,
        clock: Callable[[], float],
        keep: Callable[[SessionId], Awaitable[bool]],
        end: Callable[[SessionId], Awaitable[None]],
        is_alive: Callable[[], bool],
    ):
        """`sent_at`: when the request to open it was sent. `keep` returns False when there is no such session."""
        self.id = id
        self.ttl_s = ttl_s
        self.confirmed_at = sent_at
        """When the last confirmed keep-alive was sent, in seconds of `boot_seconds`."""
        self.reason = ""
        """Why it was lost; empty until then."""
        self._failed_at = float("-inf")
        """When the newest failed keep-alive was sent."""
        self._clock = clock
        self._keep = keep
        self._end = end
        self._is_alive = is_alive
        self._lost = asyncio.Event()
        self._beats: set[asyncio.Task[None]] = set()
        self._keeper = asyncio.get_running_loop().create_task(self._run(), name=f"session {id}")
        self._keeper.add_done_callback(self._keeper_ended)

    @property
    def held_until(self) -> float:
        """Until when, in seconds of `boot_seconds`, the holder may act on the session. Moves with each keep-alive."""
        return self.confirmed_at + SESSION_HELD_FRACTION * self.ttl_s

    @property
    def is_held(self) -> bool:
        """Whether the holder may act on it now: ask directly before acting, whatever was true a moment ago."""
        return not self._lost.is_set() and self._clock() < self.held_until

    @property
    def is_lost(self) -> bool:
        return self._lost.is_set()

    @property
    def is_answered(self) -> bool:
        """Whether the coordinator seems to answer: no keep-alive failed since the last confirmed one, or that one is
        recent. A hint."""
        return self.confirmed_at > self._failed_at or self._clock() < self.confirmed_at + UNANSWERED_SECONDS_MAX

    async def wait_lost(self) -> str:
        """Returns the reason as soon as the session is over, at the latest its whole time after the last keep-alive."""
        await self._lost.wait()
        return self.reason

    async def close(self) -> None:
        """Ends the session at the coordinator too, if that answers, so that its records are gone before its time is
        over. Waits less where the coordinator has not answered recently."""
        was_lost, seconds = self.is_lost, ETCD_READ_SECONDS_MAX if self.is_answered else FAREWELL_SECONDS_MAX
        self._lose("it was closed")
        self._keeper.cancel()
        for beat in self._beats:
            beat.cancel()
        await asyncio.gather(self._keeper, *self._beats, return_exceptions=True)
        if not was_lost:
            await self._try_to_end(seconds)

    async def _run(self) -> None:
        while not self.is_lost:
            if self._clock() >= self.confirmed_at + self.ttl_s:
                self._lose(f"no keep-alive was confirmed for {self.ttl_s} s")
                await self._try_to_end(ETCD_READ_SECONDS_MAX)
                return
            if len(self._beats) < KEEP_ALIVES_IN_FLIGHT_MAX and self._is_alive():
                # Beats overlap: one that hangs at a stuck member must not use up the session's time.
                beat = asyncio.create_task(self._beat(), name=f"keep-alive of session {self.id}")
                self._beats.add(beat)
                beat.add_done_callback(self._beats.discard)
            await asyncio.sleep(KEEP_ALIVE_SECONDS)

    def _keeper_ended(self, keeper: asyncio.Task[None]) -> None:
        if not keeper.cancelled() and (error := keeper.exception()) is not None:
            log.error("the keeper of a session failed", session=self.id, error=repr(error))
            self._lose(f"its keeper failed: {error!r}")

    async def _beat(self) -> None:
        sent_at = self._clock()
        try:
            is_there = await self._keep(self.id)
        except (Unavailable, OutcomeUnknown) as error:
            self._failed_at = max(self._failed_at, sent_at)
            log.info("a keep-alive failed", session=self.id, error=error.detail)
            return
        except PushqError as error:
            self._lose(f"it cannot be kept alive: {error.detail}")
            return
        if is_there:
            self.confirmed_at = max(self.confirmed_at, sent_at)
        else:
            self._lose("the coordinator does not know it any more")

    def _lose(self, reason: str) -> None:
        if self.is_lost:
            return
        self.reason = reason
        self._lost.set()
        log.info("a session is over", session=self.id, reason=reason)

    async def _try_to_end(self, seconds: float) -> None:
        with contextlib.suppress(PushqError, TimeoutError):
            async with asyncio.timeout(seconds):
                await self._end(self.id)
