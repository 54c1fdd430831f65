"""A complete node in a world under the test's control: time stands still, commits land when the test allows it, and a
crash leaves only what had landed.

The node, its queues and the store's client are real, over a memory engine and on their own event loop; only the clock
and the writer's thread are replaced.
"""

from __future__ import annotations

import asyncio
import traceback
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import structlog
from structlog.typing import EventDict, WrappedLogger

from backend_store.client.embedded import EmbeddedQueue, EmbeddedStore
from backend_store.core.leases.session_snapshot import KeptSession
from backend_store.model import QueueConfig
from backend_store.node.node import Node
from backend_store.storage.engine import Batch
from backend_store.storage.memory import MemoryEngine
from backend_store.storage.writer import CommitSeconds, Done

T = TypeVar("T")

START_MS = 1_700_000_000_000
TURNS_MAX = 20_000
"""Loop turns at one moment; a node that needs more is in a busy loop."""
TENANT = "default"


class StillLoop(asyncio.SelectorEventLoop):
    """A loop on which time advances only when told to."""

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0.0
        # A timer for the next millisecond must not be missed because of fractional seconds.
        self._clock_resolution = 1e-5

    def time(self) -> float:
        return self.now_ms / 1000

    def turn(self) -> None:
        self.call_soon(self.stop)
        self.run_forever()

    @property
    def next_ms(self) -> float | None:
        """The time of the next timer."""
        times = [handle.when() for handle in self._scheduled if not handle.cancelled()]
        return min(times) * 1000 if times else None

    @property
    def is_idle(self) -> bool:
        """Whether nothing more will happen at this moment."""
        next_ms = self.next_ms
        return not self._ready and (next_ms is None or next_ms > self.now_ms + 0.005)


class HeldWriter:
    """Replaces the writer's thread: commits land by themselves, or only as many as the test allows."""

    def __init__(self, world: NodeWorld):
        self.busy = False
        self.commit_seconds = CommitSeconds()
        self.allowed: int | None = None
        """How many more commits land by themselves; None: all."""
        self._world = world
        self._flight: tuple[Batch, Done] | None = None

    def submit(self, batch: Batch, done: Done) -> None:
        assert self._flight is None, "one batch in flight at a time"
        self.busy = True
        self._flight = batch, done
        if self.allowed != 0:
            if self.allowed is not None:
                self.allowed -= 1
            self._world.loop.call_soon(self.land)

    @property
    def is_held(self) -> bool:
        return self._flight is not None

    def reach_the_disk(self) -> Done | None:
        """Makes the batch durable, before anybody knows it."""
        if self._flight is None:
            return None
        (batch, done), self._flight = self._flight, None
        self._world.engine.commit(batch, lambda: None)
        return done

    def land(self) -> None:
        done = self.reach_the_disk()
        if done is not None:
            self.busy = False
            done(None)

    async def close(self) -> None:
        self.land()


class NodeWorld:
    """See the module docstring. Errors logged by the node, and faults in callbacks, are reported to the test."""

    def __init__(self, engine: MemoryEngine | None = None):
        self.engine = engine or MemoryEngine()
        self.faults: list[str] = []
        self._started_ms = START_MS
        structlog.configure(processors=[self._hear])
        self._open()

    def _hear(self, logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        if method in ("error", "critical", "exception"):
            self.faults += [f"{event}", *([traceback.format_exc()] if event.get("exc_info") else [])]
        raise structlog.DropEvent

    # ------------------------------------------------------------------------------------------------ start and end

    def _open(self) -> None:
        self.loop = StillLoop()
        self.loop.set_exception_handler(self._failed)
        self.writer = HeldWriter(self)
        self._tasks: list[asyncio.Task[Any]] = []
        self.store = self.do(self._start())

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.faults.append(f"{context['message']}: {error!r} {context.get('task', '')}")
        if error is not None:
            self.faults += traceback.format_exception(error)

    async def _start(self) -> EmbeddedStore:
        node = Node(
            self.engine,
            directory=None,
            clock_ms=lambda: self.now_ms,
            on_fatal=lambda error: self.faults.append(f"the process ends: {error!r}"),
        )
        await node.writer.close()
        node.writer = node.committer._writer = self.writer
        await node.start()
        return EmbeddedStore(node)

    @property
    def now_ms(self) -> int:
        return self._started_ms + round(self.loop.now_ms)

    @property
    def node(self) -> Node:
        return self.store.node

    def crash(self, *, landed: bool = False) -> None:
        """Ends the process and starts the next one; `landed`: the commit in flight reached the disk."""
        if landed:
            self.writer.reach_the_disk()
        self.check()
        self.engine = self.engine.crash()
        self._end()
        self._open()

    def restart(self, sessions: list[KeptSession] | None = None) -> None:
        """Stops and starts the node cleanly."""
        self.let_go()
        self.do(self.store.close(sessions))
        self.check()
        self.engine = self.engine.crash()
        self._end()
        self._open()

    def _end(self) -> None:
        """Ends everything of the old process."""
        loop, self._started_ms = self.loop, self.now_ms + 1
        loop.set_exception_handler(lambda loop, context: None)
        for handle in loop._ready:
            handle.cancel()
        while tasks := asyncio.all_tasks(loop):
            for task in tasks:
                task.cancel()
            loop.turn()
        loop.close()

    def close(self) -> None:
        """Ends the world, at the end of the test."""
        self._end()
        structlog.reset_defaults()

    # -------------------------------------------------------------------------------------------------------- time

    def settle(self) -> None:
        """Lets everything happen that is due at this moment."""
        loop = self.loop
        for _ in range(TURNS_MAX):
            loop.turn()
            if loop.is_idle:
                break
        else:
            raise AssertionError("the node does not become idle")
        self.check()

    def check(self) -> None:
        """Fails if anything in the node has failed."""
        assert not self.faults, "\n".join(self.faults)

    def pass_time(self, ms: int) -> None:
        """Advances time, from timer to timer."""
        loop = self.loop
        end = loop.now_ms + ms
        self.settle()
        while (next_ms := loop.next_ms) is not None and next_ms <= end:
            loop.now_ms = max(loop.now_ms, float(-(-round(next_ms * 1000) // 1000)))
            self.settle()
        loop.now_ms = end
        self.settle()

    def hold(self, allowed: int = 0) -> None:
        """From now on `allowed` commits land, and the next one stays in flight."""
        self.writer.allowed = allowed

    def let_go(self) -> None:
        """Lands the held commit, and all that follow."""
        self.writer.allowed = None
        self.writer.land()
        self.settle()

    # ------------------------------------------------------------------------------------------------------- calls

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Starts a coroutine, and runs it as far as it gets."""
        task = self.loop.create_task(work)
        self._tasks = [*(one for one in self._tasks if not one.done()), task]  # the loop keeps only weak references
        self.settle()
        return task

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine to its end, with no time passing and no commit held."""
        task = self.start(work)
        assert task.done(), "it cannot finish at this moment"
        return task.result()

    def tell(self, call: Callable[[], T]) -> T:
        """Calls a function on the node's loop."""

        async def told() -> T:
            return call()

        task = self.loop.create_task(told())
        while not task.done():
            self.loop.turn()
        return task.result()

    def queue(self, name: str) -> EmbeddedQueue:
        return self.store.queue(TENANT, name)

    def make(self, name: str, config: QueueConfig) -> EmbeddedQueue:
        return self.do(self.store.create_queue(TENANT, name, config))[0]
