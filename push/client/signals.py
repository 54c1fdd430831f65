"""SIGINT and SIGTERM while handlers run: the first asks them to end, the second cancels them, a third is not handled
here.

Several runners of one process share the signals. The previous signal handlers are restored when the last runner is
over, and with the second signal: a program whose handlers block the event loop can still be ended by a third one.
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
    """Stops a runner."""

    def __call__(self, *, at_once: bool = False) -> None: ...


@contextmanager
def stopped_by_signals(stop: Stop) -> Iterator[None]:
    """Within the block the signals call `stop`, in its event loop. Python delivers signals to the main thread only: in
    any other thread this does nothing."""
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
    """The runners that signals stop, and the signal handlers that were there before."""

    def __init__(self) -> None:
        self._stopping: list[Stopping] = []
        self._before: dict[signal.Signals, Any] = {}
        self._received = 0

    def join(self, stopping: Stopping) -> None:
        # The order matters, as a signal may come at any point: none may reach our handler while it has no runner.
        self._stopping.append(stopping)
        if len(self._stopping) > 1:
            if self._received:
                self._tell(stopping)
            return
        self._received = 0
        # An ignored signal stays ignored: the parent of the process wants it so.
        for number in SIGNALS:
            if (before := signal.getsignal(number)) is not signal.SIG_IGN:
                self._before[number] = before
                signal.signal(number, self._receive)

    def leave(self, stopping: Stopping) -> None:
        if len(self._stopping) == 1:
            self._restore()
        self._stopping.remove(stopping)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        """Runs between two instructions of the main thread, so the rest is left to the event loop."""
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
        restored, self._before = self._before, {}  # another signal may come meanwhile, and call this as well
        for number, before in restored.items():
            # None: it was not set from Python, and cannot be again.
            signal.signal(number, signal.SIG_DFL if before is None else before)


_watch = _Watch()
