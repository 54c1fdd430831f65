"""SIGINT and SIGTERM while handlers run: the first asks them to end, the second leaves at once, the third is nobody's.

Several runners of one process share the signals. What was there before comes back when the last of them is over, and
with the second signal: a program whose handlers block the event loop can still be ended by a third.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Protocol

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop(Protocol):
    """What ends a runner."""

    def __call__(self, *, at_once: bool = False) -> None: ...


@contextmanager
def stopped_by_signals(stop: Stop) -> Iterator[None]:
    """Within the block the signals call `stop`, in its event loop. Python gives signals to the main thread alone: in
    any other this does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    stopping = asyncio.get_running_loop(), stop
    _watch.join(stopping)
    try:
        yield
    finally:
        _watch.leave(stopping)


Stopping = tuple[asyncio.AbstractEventLoop, Stop]


class _Watch:
    """Who is stopped by signals, and what took them before."""

    def __init__(self) -> None:
        self._stopping: list[Stopping] = []
        self._before: dict[signal.Signals, Any] = {}
        self._received = 0

    def join(self, stopping: Stopping) -> None:
        # In an order in which no signal meets a handler of ours without anybody to tell: one may come at any point.
        self._stopping.append(stopping)
        if len(self._stopping) > 1:
            if self._received:
                self._tell(stopping)
            return
        self._received = 0
        # One that is ignored stays so: whoever started the process wants it.
        for number in SIGNALS:
            if (before := signal.getsignal(number)) is not signal.SIG_IGN:
                self._before[number] = before
                signal.signal(number, self._receive)

    def leave(self, stopping: Stopping) -> None:
        if len(self._stopping) == 1:
            self._restore()
        self._stopping.remove(stopping)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        """Between two instructions of the main thread: what follows is the event loop's."""
        self._received += 1
        if self._received > 1:
            self._restore()
        for stopping in self._stopping:
            self._tell(stopping)

    def _tell(self, stopping: Stopping) -> None:
        loop, stop = stopping
        at_once = self._received > 1
        loop.call_soon_threadsafe(lambda: stop(at_once=at_once))

    def _restore(self) -> None:
        restored, self._before = self._before, {}  # another signal may come meanwhile, and have this done as well
        for number, before in restored.items():
            # None: it was not set from Python, and cannot be again.
            signal.signal(number, signal.SIG_DFL if before is None else before)


_watch = _Watch()
