"""The writer thread: takes one batch at a time from the event loop, commits it, and reports the result on the loop.

The two threads share one GIL, and a busy loop starves the other: every call into LMDB releases the GIL, and a loop
whose callbacks take microseconds releases and retakes it faster than a waiter wakes up. Measured, commits of 0.3 ms
became 50 ms to seconds. So the loop waits, well below 0.1 ms, until the rows are staged, and while it stays busy it
sleeps briefly now and then until the fsync is over. An idle loop releases the GIL by itself and needs no sleeps.
"""

import asyncio
import gc
import sys
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from backend_store.storage.engine import Batch, Engine, StorageFull, nothing_more

STAGED_WAIT_SECONDS_MAX = 0.002
POKE_AFTER_SECONDS = 0.0006
"""uvloop counts whole milliseconds: this rounds to one there, and half a millisecond would round to a busy spin."""
POKE_SECONDS_MAX = 0.0002
"""Half of it is too short where both threads share one core: beside callbacks of 1 ms, p99 was 5.4 ms instead of
3.4."""
SWITCH_SECONDS = 1e-5
COMMIT_SECONDS_BUCKETS = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)

Done = Callable[[BaseException | None], None]


def prepare_interpreter() -> None:
    """Called once at the start of a node: a thread that waits for the GIL requests it after 10 µs, not after 5 ms."""
    sys.setswitchinterval(SWITCH_SECONDS)


@contextmanager
def growing() -> Iterator[None]:
    """Disables garbage collection while thousands of queues are opened: all that is made stays, and collecting among it
    again and again took four tenths of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class CommitSeconds:
    """Durations of commits, from the hand-over to the end of the fsync. Read on the loop."""

    def __init__(self) -> None:
        self.last = 0.0
        self.count = 0
        self.sum = 0.0
        self.buckets = [0] * (len(COMMIT_SECONDS_BUCKETS) + 1)
        """Commits up to each bound of `COMMIT_SECONDS_BUCKETS` and above the one before; the last entry is the rest."""

    def add(self, seconds: float) -> None:
        self.last = seconds
        self.count += 1
        self.sum += seconds
        self.buckets[bisect_left(COMMIT_SECONDS_BUCKETS, seconds)] += 1


class CommitWriter(Protocol):
    """The writer's interface for a node: one batch in flight; `done` is called on the loop when it is as safe as
    required."""

    busy: bool
    commit_seconds: CommitSeconds

    def submit(self, batch: Batch, done: Done) -> None: ...

    async def close(self) -> None: ...


class _Flight:
    """A batch on its way to the disk."""

    __slots__ = ("batch", "done", "error", "finished", "landed", "seconds", "staged")

    def __init__(self, batch: Batch, done: Done):
        self.batch = batch
        self.done = done
        self.error: BaseException | None = None
        self.seconds = 0.0
        self.landed = False
        # Locks used as one-shot signals, new for each flight so that none carries over from the last.
        self.staged = threading.Lock()
        self.staged.acquire()
        self.finished = threading.Lock()
        self.finished.acquire()


class Writer:
    """One thread, one batch in flight. All methods must be called on the loop's thread."""

    def __init__(
        self, engine: Engine, loop: asyncio.AbstractEventLoop, *, on_fatal: Callable[[BaseException], None]
    ) -> None:
        """`on_fatal` is called with every failure but `StorageFull`, on the loop, after the batch's own `done`."""
        self.busy = False
        self.commit_seconds = CommitSeconds()
        self._engine = engine
        self._loop = loop
        self._on_fatal = on_fatal
        self._fatal: BaseException | None = None
        self._closed = False
        self._idle: asyncio.Future[None] | None = None
        self._flight: _Flight | None = None
        self._poke_timer: asyncio.TimerHandle | None = None
        engine.on_broken = self._met_broken
        self._handed = threading.Lock()
        self._handed.acquire()
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    def submit(self, batch: Batch, done: Done) -> None:
        """Hands the batch over; it must not change afterwards. `done` is called on the loop, after the fsync.

        Raises the fatal error again when an earlier commit failed, and `RuntimeError` after `close`.
        """
        assert not self.busy, "one batch in flight at a time"
        if self._fatal is not None:
            raise nothing_more(self._fatal, "no commits after a failed one")
        if self._closed:
            raise RuntimeError("the writer is closed")
        self.busy = True
        flight = self._flight = _Flight(batch, done)
        self._handed.release()
        flight.staged.acquire(timeout=STAGED_WAIT_SECONDS_MAX)
        self._poke_timer = self._loop.call_later(POKE_AFTER_SECONDS, self._poke, flight)

    def _met_broken(self, error: BaseException) -> None:
        """Called in any thread when a read met a broken structure. Nothing is written from now on."""
        try:
            self._loop.call_soon_threadsafe(self._end, error)
        except RuntimeError:
            return  # the loop was closed: the process ends anyway

    def _end(self, error: BaseException) -> None:
        if self._fatal is None and not self._closed:
            self._fatal = error
            self._on_fatal(error)

    def _poke(self, flight: _Flight) -> None:
        if flight.finished.acquire(timeout=POKE_SECONDS_MAX):
            self._land(flight)
        else:
            self._poke_timer = self._loop.call_later(POKE_AFTER_SECONDS, self._poke, flight)

    def _land(self, flight: _Flight) -> None:
        if flight.landed:
            return  # a poke was faster than the thread's own message
        flight.landed = True
        if self._poke_timer is not None:
            self._poke_timer.cancel()
            self._poke_timer = None
        self._flight = None
        self.busy = False
        self.commit_seconds.add(flight.seconds)
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)
        if flight.error is None or isinstance(flight.error, StorageFull):
            flight.done(flight.error)
            return
        self._fatal = flight.error
        try:
            flight.done(flight.error)
        finally:
            self._on_fatal(flight.error)

    def _run(self) -> None:
        while True:
            self._handed.acquire()
            flight = self._flight
            if flight is None:
                return
            self._commit(flight)

    def _commit(self, flight: _Flight) -> None:
        began = time.perf_counter()
        try:
            self._engine.commit(flight.batch, flight.staged.release)
        except BaseException as error:
            flight.error = error
            if flight.staged.locked():
                flight.staged.release()
        flight.seconds = time.perf_counter() - began
        flight.finished.release()
        try:
            self._loop.call_soon_threadsafe(self._land, flight)
        except RuntimeError:
            return  # the loop was closed under a batch in flight: no callback is left

    async def close(self) -> None:
        """Waits for the batch in flight, then ends the thread. Later batches are refused."""
        if self._closed:
            return
        self._closed = True
        if self.busy:
            self._idle = self._loop.create_future()
            await self._idle
        self._handed.release()
        self._thread.join()
