"""The request under way: since when an answer to it must hold, until when somebody waits for it, and who that is.

All of it travels with its context to whatever it asks elsewhere. Work that others share, or that outlives the request,
runs in a context of its own: nobody's deadline may cut it short.
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
        """When it came: numbers that it asks for are as they were then, or later."""
        self.until = until
        """Until when its caller waits; infinite where it did not say, and once it was answered."""
        self.whose: str | None = ""
        """The tenant on whose account it goes; empty while that is not known, None for an operator, who has the room
        that the gateway's own questions have."""
        self.has_changed = False
        """Whether a change that it asked for elsewhere was made: it must not be told that nothing was done."""


ASKED: Final[ContextVar[Asked | None]] = ContextVar("asked", default=None)
"""The request under way; None outside of one."""


def waited_until() -> float:
    """Until when somebody waits for what is done in this context."""
    asked = ASKED.get()
    return inf if asked is None else asked.until


def changed() -> None:
    """A change that the request under way asked for elsewhere was made."""
    asked = ASKED.get()
    if asked is not None:
        asked.has_changed = True


def unbounded_task(work: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
    """A task that no request's deadline cuts short, whichever request begins it."""
    context = copy_context()
    context.run(ASKED.set, None)
    return asyncio.get_running_loop().create_task(work, name=name, context=context)
