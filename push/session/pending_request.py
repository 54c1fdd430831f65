"""A request on a socket that awaits its answer: counted with its outcome and duration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

from backend_store.model import PushqError
from backend_store.tracing import carried

if TYPE_CHECKING:
    from push.session.session import Session
    from push.spans import Begun


class PendingRequest:
    """One request, or several handled together, until `ended`. Its handler makes and ends it."""

    __slots__ = ("_began", "bytes_in", "messages", "operation", "queue", "requests", "session", "span")

    def __init__(
        self,
        session: Session,
        operation: str,
        queue: str,
        *,
        messages: int,
        bytes_in: int = 0,
        requests: int = 1,
        frame: Any = None,
    ):
        """`requests`: how many frames, if several are handled together. `frame`: the one that may have the caller's
        trace context."""
        self.session = session
        self.operation = operation
        self.queue = queue
        self.messages = messages
        self.bytes_in = bytes_in
        self.span: Begun | None = None
        """Set if spans are wanted."""
        if (spans := session.hub.spans) is not None:
            self.span = spans.begun(operation, queue, session.who.tenant, parent=spans.parent_of(frame))
        self.requests = requests
        self._began = perf_counter()
        session.began(requests)

    def run(self, do: Callable[..., object], *arguments: Any, **more: Any) -> None:
        """Calls `do`, which carries the request out, as a part of its trace."""
        if self.span is None:
            do(*arguments, **more)
        else:
            with carried(self.span.trace):
                do(*arguments, **more)

    def ended(self, error: PushqError | None) -> None:
        """Counts the answer: `error` if all of the request was refused."""
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
        if self.span is not None:
            self.span.answered(self.queue, self.messages, None if error is None else error.code)

    def ended_apart(self, counts: Sequence[int], errors: Sequence[PushqError | None]) -> None:
        """Counts frames that were handled together and had different outcomes, with `counts` messages each. Each gets
        its share of the bytes."""
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
