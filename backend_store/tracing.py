"""The trace that what is done now belongs to, as it travels between the processes: with the calls of a request.

Nothing here knows who makes spans; where nobody does, nothing is carried and nothing is sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, Protocol

TRACE: Final[ContextVar[str | None]] = ContextVar("pushq trace", default=None)
"""A `traceparent`, and the `tracestate` behind a space; None where nobody wants spans."""


@contextmanager
def carried(trace: str | None) -> Iterator[None]:
    """What is called inside belongs to the trace, and so does what that leaves for later turns of the loop."""
    token = TRACE.set(trace)
    try:
        yield
    finally:
        TRACE.reset(token)


class Served(Protocol):
    """The span of something under way."""

    @property
    def trace(self) -> str:
        """As it travels on."""

    def ended(self, error: str | None = None) -> None:
        """`error`: a problem's code."""


class Tracer(Protocol):
    """Makes spans of what one process does for another."""

    def served(self, operation: str, parent: str, *, queue: str = "", tenant: str = "", shard: int = -1) -> Served:
        """`parent`: the caller's trace."""

    def done(self, operation: str) -> Served:
        """Of work that nobody asked for: it begins a trace."""
