"""Detects clients that stopped reading: tracks what a session was sent, and whether a frame came from the client since.

Written bytes prove little: the peer's kernel takes in hundreds of messages for a program that hangs. A frame that comes
after a message shows that the client works, and every client answers a `ping`. A client that takes long for large
messages has not come to the `ping` yet; that fewer and fewer bytes wait in the kernel shows that it reads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

Verdict = Literal["ask", "withhold", "restore"]


class Liveness:
    """The state of one session. The session increments `heard` with each frame."""

    __slots__ = ("_asked_at", "_sent_at", "_sent_ms", "_waiting_bytes", "heard", "is_withheld")

    def __init__(self) -> None:
        self.heard = 0
        self.is_withheld = False
        """The session gets no messages until its client is heard."""
        self._sent_at = self._asked_at = -1
        """The values of `heard` when messages were last sent, and when the client was last asked."""
        self._sent_ms = 0
        """When the first message was written after the client was last heard."""
        self._waiting_bytes = 0

    def sent(self, now_ms: int) -> None:
        """Notes that messages were written."""
        if self._sent_at != self.heard:
            self._sent_at = self.heard
            self._sent_ms = now_ms

    def judge(self, now_ms: int, unread_ms: int, waiting_bytes: Callable[[], int]) -> Verdict | None:
        """What to do now. It asks for a ping at half of the time, so that a client that only has nothing to send can
        answer.

        `waiting_bytes` returns how many bytes the peer has not taken yet.
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
