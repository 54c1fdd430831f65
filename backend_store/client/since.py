"""Since when an answer must hold: a request that asks for numbers sees what was confirmed before it came."""

from contextvars import ContextVar

ASKED_AT: ContextVar[float | None] = ContextVar("asked_at", default=None)
"""When the request under way began, by the clock of its loop; None outside of one."""
