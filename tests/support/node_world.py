"""A whole node in a world that the test moves: time stands, commits land when the test lets them, a crash leaves what
had landed.

The node, its queues and the store's client are the real ones, over a memory engine and on an event loop of their own;
only the clock and the writer's thread are not there.
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
"""Turns of the loop at one moment: more is a node that keeps itself busy."""
TENANT = "default"


class StillLoop(asyncio.SelectorEventLoop):
    """A loop on which no time passes until somebody says so."""

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0.0
        # A timer for the next millisecond is not missed because seconds are fractions.
        self._clock_resolution = 1e-5

    def time(self) -> float:
        return self.now_ms / 1000

    def turn(self) -> None:
        self.call_soon(self.stop)
        self.run_forever()

    @property
    def next_ms(self) -> float | None:
        """When the next timer is due."""
        times = [handle.when() for handle in self._scheduled if not handle.cancelled()]
        return min(times) * 1000 if times else None

    @property
    def is_idle(self) -> bool:
        """Nothing happens any more at this moment."""
        next_ms = self.next_ms
        return not self._ready and (next_ms is None or next_ms > self.now_ms + 0.005)


class HeldWriter:
    """In place of the writer's thread: commits land by themselves, or as many of them as the test allows."""

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
        """The batch is durable, and nobody knows it yet."""
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
    """See the file's first sentence. Whatever the node logs as an error, or a fault in a callback, is the test's."""

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
        """The process ends now, and the next one begins; `landed`: what was on its way reached the disk."""
        if landed:
            self.writer.reach_the_disk()
        self.check()
        self.engine = self.engine.crash()
        self._end()
        self._open()

    def restart(self, sessions: list[KeptSession] | None = None) -> None:
        """A clean stop and start."""
        self.let_go()
        self.do(self.store.close(sessions))
        self.check()
        self.engine = self.engine.crash()
        self._end()
        self._open()

    def _end(self) -> None:
        """Nothing of the old process goes on."""
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
        """The end of the test."""
        self._end()
        structlog.reset_defaults()

    # -------------------------------------------------------------------------------------------------------- time

    def settle(self) -> None:
        """Everything happens that happens at this moment."""
        loop = self.loop
        for _ in range(TURNS_MAX):
            loop.turn()
            if loop.is_idle:
                break
        else:
            raise AssertionError("the node does not come to rest")
        self.check()

    def check(self) -> None:
        """Nothing of the node has failed."""
        assert not self.faults, "\n".join(self.faults)

    def pass_time(self, ms: int) -> None:
        """Time passes, from timer to timer."""
        loop = self.loop
        end = loop.now_ms + ms
        self.settle()
        while (next_ms := loop.next_ms) is not None and next_ms <= end:
            loop.now_ms = max(loop.now_ms, float(-(-round(next_ms * 1000) // 1000)))
            self.settle()
        loop.now_ms = end
        self.settle()

    def hold(self, allowed: int = 0) -> None:
        """From now on so many commits land, and the next one stays on its way."""
        self.writer.allowed = allowed

    def let_go(self) -> None:
        """What was held lands, and all that follows."""
        self.writer.allowed = None
        self.writer.land()
        self.settle()

    # ------------------------------------------------------------------------------------------------------- calls

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begins something, and goes on as far as it gets."""
        task = self.loop.create_task(work)
        self._tasks = [*(one for one in self._tasks if not one.done()), task]  # the loop alone would forget it
        self.settle()
        return task

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Does something to its end; no time passes, and nothing is held."""
        task = self.start(work)
        assert task.done(), "it did not come to its end at this moment"
        return task.result()

    def tell(self, call: Callable[[], T]) -> T:
        """Calls something of the node's on its loop."""

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
