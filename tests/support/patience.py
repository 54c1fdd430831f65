"""How long tests wait for what must come: one limit for all, far beyond what it takes on a machine that is busy.

It says nothing about how fast Pushq is; what a page promises has a limit of its own, beside the test of that promise.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from collections.abc import Callable, Iterable
from typing import Any

What = str | Callable[[], str]
"""What was waited for: a text, or what makes one of how things are when the time is over."""
PATIENCE_S = float(os.environ.get("TEST_PATIENCE_S", "60"))
"""`TEST_PATIENCE_S` stretches it for a machine that is slower still."""

RARER = 10
"""See `eventually`."""

FAR = 10.0
"""What is measured on a machine that others use is no verdict: beside other tests a figure must only stay within so
many times its bound. The long forms (`make overload`, `make storm`) hold it to the bound itself."""


def until(is_so: Callable[[], object], what: What = "", *, within_s: float = PATIENCE_S, look_s: float = 0.05) -> float:
    """Looks again and again; seconds until it was so. Where it never is, the test fails with `what` was waited for."""
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
    """The same on a loop, for a question that may be awaited. Where one of the tasks `beside` fails, so does this.

    What takes long is looked at up to `RARER` times less often: a question is often a request to a server that has
    enough to do, and an answer that comes a tenth later than it could is soon enough.
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
    """Without words for it, the line that asks says what was waited for."""
    text = what() if callable(what) else what
    if not text:
        try:
            text = " ".join(inspect.getsource(is_so).split())
        except (OSError, TypeError):
            text = repr(is_so)
    return f"not within {within_s:g} s: {text}"
