"""The current trace context, carried with the calls of a request from one process to the next.

This module does not depend on a tracer. Without one, no trace is carried or sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, Protocol

TRACE: Final[ContextVar[str | None]] = ContextVar("pushq trace", default=None)
"""A `traceparent`, and the `tracestate` after a space; None without a tracer."""


@contextmanager
def carried(trace: str | None) -> Iterator[None]:
    """Calls inside belong to the trace, and so do the tasks and callbacks that they create."""
    token = TRACE.set(trace)
    try:
        yield
    finally:
        TRACE.reset(token)


class Served(Protocol):
    """The span of an operation in progress."""

    @property
    def trace(self) -> str:
        """The trace context to pass on."""

    def ended(self, error: str | None = None) -> None:
        """Ends the span. `error`: a problem's code."""


class Tracer(Protocol):
    """Makes spans of what one process does for another."""

    def served(self, operation: str, parent: str, *, queue: str = "", tenant: str = "", shard: int = -1) -> Served:
        """Starts a span of a call that is served. `parent`: the caller's trace."""

    def done(self, operation: str) -> Served:
        """Starts a span of work that no request asked for: it begins a trace."""
