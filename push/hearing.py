"""Whether a client still reads: what it was sent, and whether anything came from it since.

Bytes that left say little: a peer's kernel takes in hundreds of messages for a program that stands still. A word from
the client that came after a message says that it is at work, and every client answers a `ping`. One that takes long for
large messages has not come to the `ping` yet; that fewer and fewer bytes are on their way shows that it reads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

Verdict = Literal["ask", "withhold", "restore"]


class Hearing:
    """Of one session. `heard` counts what came: the session does it with each frame."""

    __slots__ = ("_asked_at", "_sent_at", "_sent_ms", "_waiting_bytes", "heard", "is_withheld")

    def __init__(self) -> None:
        self.heard = 0
        self.is_withheld = False
        """It gets no messages until something is heard of it."""
        self._sent_at = self._asked_at = -1
        """What had been heard by then."""
        self._sent_ms = 0
        """When the first message left after the last word."""
        self._waiting_bytes = 0

    def sent(self, now_ms: int) -> None:
        """Messages have left."""
        if self._sent_at != self.heard:
            self._sent_at = self.heard
            self._sent_ms = now_ms

    def judge(self, now_ms: int, unread_ms: int, waiting_bytes: Callable[[], int]) -> Verdict | None:
        """What to do now. It is asked at half of the time, so that one that only has nothing to say can answer.

        `waiting_bytes` says how much the peer's kernel has not taken yet.
        """
        if self._sent_at != self.heard:
            if self.is_withheld:
                self.is_withheld = False
                return "restore"
            return None
        silent_ms = now_ms - self._sent_ms
        if silent_ms >= unread_ms and not self.is_withheld and self._asked_at == self.heard:
            before, self._waiting_bytes = self._waiting_bytes, waiting_bytes()
            if self._waiting_bytes < before:
                self._sent_ms = now_ms - unread_ms // 2
                return None
            self.is_withheld = True
            return "withhold"
        if silent_ms >= unread_ms // 2 and self._asked_at != self.heard:
            self._asked_at = self.heard
            self._waiting_bytes = waiting_bytes()
            return "ask"
        return None
