"""A request on a socket while its answer is awaited: counted with how it went and how long it took."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING

from backend_store.model import PushqError

if TYPE_CHECKING:
    from push.session import Session


class Asked:
    __slots__ = ("_began", "bytes_in", "messages", "operation", "parent", "queue", "requests", "session")

    def __init__(
        self, session: Session, operation: str, queue: str, *, messages: int, bytes_in: int = 0, requests: int = 1
    ):
        """`requests`: how many frames, where some are handled together."""
        self.session = session
        self.operation = operation
        self.queue = queue
        self.messages = messages
        self.bytes_in = bytes_in
        self.parent: str | None = None
        """The trace context that the caller sent, where spans are wanted."""
        self.requests = requests
        self._began = perf_counter()
        session.began(requests)

    def ended(self, error: PushqError | None) -> None:
        """The answer is known: `error` where there was nothing but one."""
        session = self.session
        session.ended(self.requests)
        seconds = perf_counter() - self._began
        session.count(
            self.operation,
            self.queue,
            "ok" if error is None else error.code,
            requests=self.requests,
            messages=self.messages if error is None else 0,
            bytes_in=self.bytes_in,
            seconds=seconds,
        )
        if (spans := session.hub.spans) is not None:
            spans.asked(
                self.operation,
                self.queue,
                session.who.tenant,
                seconds=seconds,
                messages=self.messages,
                error=None if error is None else error.code,
                parent=self.parent,
            )

    def ended_apart(self, counts: Sequence[int], errors: Sequence[PushqError | None]) -> None:
        """The same for frames that were handled together and came out differently: so many messages each. Each has its
        share of the bytes.
        """
        session = self.session
        session.ended(self.requests)
        seconds = perf_counter() - self._began
        bytes_left = self.bytes_in
        for number, (count, error) in enumerate(zip(counts, errors, strict=True), start=1):
            size = bytes_left // (self.requests - number + 1)
            bytes_left -= size
            session.count(
                self.operation,
                self.queue,
                "ok" if error is None else error.code,
                messages=count if error is None else 0,
                bytes_in=size,
                seconds=seconds,
            )
