"""The rate gate of a session: checks its frames against its limits. While one frame waits for its verdict, all later
ones wait behind it, in order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import structlog

from backend_store.model import PushqError
from throttling.abuse import Abuse

if TYPE_CHECKING:
    from push.session.session import Session

log = structlog.get_logger("pushq.session")

Verdict = PushqError | None
"""Why a frame is refused; None if it passes."""
Go = Callable[[], None]
Refused = Callable[[PushqError], None]


class RateGate:
    """The limits of one session. The gate is closed while a frame waits for counts that are kept elsewhere."""

    __slots__ = ("_abuse", "_asking", "_session", "held")

    def __init__(self, session: Session) -> None:
        self._session = session
        self.held: deque[Go] | None = None
        """Frames that came while one waits for its verdict; None while none does."""
        self._asking: asyncio.Task[None] | None = None
        self._abuse: Abuse | None = None

    def enter(self, verdict: Verdict | Coroutine[Any, Any, Verdict], go: Go, refused: Refused) -> None:
        """Calls `go` if the verdict passes, else `refused`: now, or when the verdict is known."""
        if verdict is None:
            self.passed(1)
            go()
        elif isinstance(verdict, PushqError):
            refused(verdict)
        else:
            assert self.held is None, "a frame passes while another one waits"
            self.held = deque()
            self._session.wire.pause()
            self._asking = self._session.hub.loop.create_task(self._ask(verdict, go, refused), name="limits")

    def passed(self, frames: int) -> None:
        """Notes frames that were within the limits."""
        if self._abuse is not None:
            self._abuse.allowed(frames)

    async def _ask(self, verdict: Coroutine[Any, Any, Verdict], go: Go, refused: Refused) -> None:
        try:
            answer = await verdict
        except Exception:
            log.exception("limits could not be checked", session=self._session.id[:6])
            answer = PushqError("internal error; see the log", code="internal")
        waiting, self.held, self._asking = self.held, None, None
        session = self._session
        if session.closed:
            refused(PushqError("the connection was closed in the meantime", code="unavailable"))
            return
        session.read_on()
        try:
            self._enter(answer, go, refused)
            self._go_on(waiting or deque())
        except Exception:
            # A bug: the client must not wait for an answer that never comes.
            log.exception("a session failed after waiting for its limits", session=session.id[:6])
            session.close(1011, "internal error")

    def _enter(self, answer: Verdict, go: Go, refused: Refused) -> None:
        """Applies a late verdict. Whatever fails, `refused` gives back what the frame took before it had to wait."""
        try:
            self.enter(answer, go, refused)
        except PushqError as error:
            refused(error)
        except Exception:
            refused(PushqError("internal error; see the log", code="internal"))
            raise

    def _go_on(self, waiting: deque[Go]) -> None:
        """Handles the held frames, until one of them has to wait."""
        while waiting and self.held is None:
            waiting.popleft()()
            self._session.turn_ended()
        if self.held is not None:
            self.held.extend(waiting)

    def is_abused(self) -> bool:
        """Counts a refused publish. True if the client has sent hardly anything else for long: its socket is closed."""
        now_ms = self._session.hub.clock_ms()
        if self._abuse is None:
            self._abuse = Abuse(now_ms)
        if not self._abuse.refused(now_ms):
            return False
        self._session.over_rate("nearly everything exceeded the rate limit for 10 s")
        return True
