"""How long tests wait for something that must happen: one limit for all, far beyond what it takes on a busy machine.

It says nothing about Pushq's speed; a time promised by a page has its own limit, next to the test of that promise.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from collections.abc import Callable, Iterable
from typing import Any

What = str | Callable[[], str]
"""What was waited for: a text, or a function that makes one from the state when the time is up."""
PATIENCE_S = float(os.environ.get("TEST_PATIENCE_S", "60"))
"""`TEST_PATIENCE_S` extends it for even slower machines."""

RARER = 10
"""See `eventually`."""

FAR = 10.0
"""A measurement on a shared machine proves nothing: alongside other tests a figure only has to stay within this many
times its limit. The long forms (`make overload`, `make storm`) enforce the limit itself."""


def until(is_so: Callable[[], object], what: What = "", *, within_s: float = PATIENCE_S, look_s: float = 0.05) -> float:
    """Polls until `is_so()`; returns the seconds that took. If it never is, the test fails and names `what`."""
    began = time.monotonic()
    while not is_so():
        assert time.monotonic() - began < within_s, _never(is_so, what, within_s)
        time.sleep(look_s)
    return time.monotonic() - began


async def eventually(
    is_so: Callable[[], object],
    what: What = "",
    *,
    within_s: float = PATIENCE_S,
    look_s: float = 0.005,
    beside: Iterable[asyncio.Task[Any]] = (),
) -> float:
    """Like `until`, on an event loop and for conditions that may be awaited. Fails if one of the tasks `beside` fails.

    Long waits are polled up to `RARER` times less often: the condition is often a request to a busy server, and
    noticing it a tenth later is soon enough.
    """
    began, tasks = time.monotonic(), list(beside)
    try:
        async with asyncio.timeout(within_s) as limit:
            while not await _answer(is_so()):
                for task in tasks:
                    if task.done():
                        task.result()
                waited = time.monotonic() - began
                await asyncio.sleep(min(max(look_s, waited / RARER), look_s * RARER))
    except TimeoutError:
        if not limit.expired():
            raise
        raise AssertionError(_never(is_so, what, within_s)) from None
    return time.monotonic() - began


async def _answer(said: object) -> object:
    return await said if inspect.isawaitable(said) else said


def _never(is_so: Callable[[], object], what: What, within_s: float) -> str:
    """The failure's text. Without `what`, it names the line that called."""
    text = what() if callable(what) else what
    if not text:
        try:
            text = " ".join(inspect.getsource(is_so).split())
        except (OSError, TypeError):
            text = repr(is_so)
    return f"not within {within_s:g} s: {text}"
