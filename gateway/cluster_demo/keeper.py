"""Watches the processes of the demo's cluster: reports their state, kills one on request, restarts those that died."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from gateway.cluster_demo.limits import DOWN_SECONDS, EVENTS_MAX, LOOK_SECONDS, REVIVE_AGAIN_SECONDS
from gateway.dev_ca import CaError
from gateway.dev_cluster import running
from gateway.dev_cluster.layout import MissingProgram
from gateway.dev_cluster.processes import NotReady
from gateway.dev_cluster.state import Part, Role, State, StateError, load

CANNOT_START = (MissingProgram, CaError, StateError, NotReady, OSError)
"""Errors that prevent a process from starting."""


class PartView(msgspec.Struct, frozen=True):
    """One process, as the page shows it."""

    name: str
    role: Role
    address: str
    pid: int | None
    state: Literal["up", "down", "starting"]
    leads: tuple[int, ...]
    """Shards."""


class Event(msgspec.Struct, frozen=True):
    at_s: float
    """Seconds since the Unix epoch."""
    kind: Literal["killed", "back", "leads"]
    part: str
    text: str


class NoSuchPart(Exception):
    """The process does not exist or is not running; the message says which."""


@dataclass(slots=True)
class Keeper:
    """One per folder. Blocking calls run in threads; all else runs on the event loop."""

    folder: Path
    on_kill: Callable[[str], None]
    """Called before the signal."""
    _state: State = field(init=False)
    _leaders: dict[tuple[str, int], str] = field(default_factory=dict)
    """Cluster and shard → the backend last seen as its leader."""
    _died_s: dict[str, float] = field(default_factory=dict)
    _starting: set[str] = field(default_factory=set)
    events: deque[Event] = field(default_factory=lambda: deque(maxlen=EVENTS_MAX))

    def __post_init__(self) -> None:
        self._state = self._loaded()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch(), name="watch")
            tasks.create_task(self._revive(), name="revive")

    def view(self) -> list[PartView]:
        return [
            PartView(part.name, part.role, part.address, part.pid, self._how(part), self._led_by(part.name))
            for part in self._state.parts
        ]

    def kill(self, name: str) -> None:
        """Sends SIGKILL. Raises `NoSuchPart`, `StateError`."""
        self._state = self._loaded()
        part = next((part for part in self._state.parts if part.name == name), None)
        if part is None:
            raise NoSuchPart(f"the cluster has no process {name!r}")
        if part.pid is None or not part.is_alive:
            raise NoSuchPart(f"{name} is not running; it is being restarted")
        self.on_kill(name)
        leads = self._led_by(name)
        self._tell("killed", name, f"{name} got SIGKILL (process {part.pid}){_shards(', it led', leads)}")
        self._died_s[name] = time.monotonic()
        with suppress(ProcessLookupError):
            os.kill(part.pid, signal.SIGKILL)

    async def _watch(self) -> None:
        while True:
            self._state = self._loaded()
            for part in self._state.parts:
                if not part.is_alive:
                    _reap(part)
                    self._died_s.setdefault(part.name, time.monotonic())
            found = await asyncio.to_thread(running.leaders, self._state)
            for one in found:
                shard = one["cluster"], one["shard"]
                known = self._leaders.get(shard)
                self._leaders[shard] = one["leader"]
                if known is not None and known != one["leader"]:
                    self._tell("leads", one["leader"], f"{one['leader']} leads shard {one['shard']} now")
            await asyncio.sleep(LOOK_SECONDS)

    async def _revive(self) -> None:
        """Restarts processes that were down for `DOWN_SECONDS`. One that dies meanwhile waits for the next round."""
        while True:
            due = time.monotonic() - DOWN_SECONDS
            dead = {name for name, at_s in self._died_s.items() if at_s <= due}
            if dead:
                self._starting = dead
                try:
                    await asyncio.to_thread(running.up, self.folder, _silent)
                    self._welcome()
                except CANNOT_START:
                    await asyncio.sleep(REVIVE_AGAIN_SECONDS)
                finally:
                    self._starting = set()
            await asyncio.sleep(LOOK_SECONDS)

    def _welcome(self) -> None:
        self._state = self._loaded()
        for part in self._state.parts:
            if part.is_alive and (died_s := self._died_s.pop(part.name, None)) is not None:
                self._tell("back", part.name, f"{part.name} is back after {time.monotonic() - died_s:.1f} s")

    def _loaded(self) -> State:
        state = load(self.folder)
        if state is None:
            raise StateError(f"no cluster in {self.folder}")
        return state

    def _how(self, part: Part) -> Literal["up", "down", "starting"]:
        if part.name in self._starting:
            return "starting"
        return "up" if part.is_alive else "down"

    def _led_by(self, name: str) -> tuple[int, ...]:
        return tuple(shard for (_, shard), leader in sorted(self._leaders.items()) if leader == name)

    def _tell(self, kind: Literal["killed", "back", "leads"], part: str, text: str) -> None:
        self.events.appendleft(Event(time.time(), kind, part, text))


def _reap(part: Part) -> None:
    """Waits for a child that has ended, which otherwise stays a zombie."""
    if part.pid is not None:
        with suppress(ChildProcessError):
            os.waitpid(part.pid, os.WNOHANG)


def _shards(before: str, shards: tuple[int, ...]) -> str:
    if not shards:
        return ""
    return f"{before} shard{'s' if len(shards) > 1 else ''} {', '.join(map(str, shards))}"


def _silent(_: str) -> None:
    """The page shows the events instead."""
