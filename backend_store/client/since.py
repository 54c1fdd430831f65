"""Context of the current request: when it came, how long its caller waits, and whose it is.

The context travels with the request to whatever it asks elsewhere. Work that is shared or outlives the request runs in
a context of its own, so that no request's deadline cuts it short.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import ContextVar, copy_context
from math import inf
from typing import Any, Final, TypeVar

T = TypeVar("T")


class Asked:
    """One request, in seconds by the clock of its loop."""

    __slots__ = ("at", "has_changed", "until", "whose")

    def __init__(self, at: float, until: float = inf) -> None:
        self.at = at
        """When the request came: numbers that it asks for are as of then, or later."""
        self.until = until
        """Until when its caller waits; infinite if the caller did not say, and once it was answered."""
        self.whose: str | None = ""
        """The tenant it is accounted to; empty while unknown. None for an operator, who shares the room of the
        gateway's own requests."""
        self.has_changed = False
        """Whether a change that the request asked for elsewhere was made: its caller must not be told that nothing was
        done."""


ASKED: Final[ContextVar[Asked | None]] = ContextVar("asked", default=None)
"""The current request; None outside of one."""


def waited_until() -> float:
    """Until when a caller waits for what is done in this context."""
    asked = ASKED.get()
    return inf if asked is None else asked.until


def changed() -> None:
    """Notes that a change which the current request asked for elsewhere was made."""
    asked = ASKED.get()
    if asked is not None:
        asked.has_changed = True


def unbounded_task(work: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
    """A task that no request's deadline cuts short, whichever request starts it."""
    context = copy_context()
    context.run(ASKED.set, None)
    return asyncio.get_running_loop().create_task(work, name=name, context=context)
