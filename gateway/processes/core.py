"""Decides which processes of a server run, and what follows when one ends. The parent has processes and clock.

The storage process starts first, as it holds the data folder; then the first gateway, which does the one-time work of a
first start; then the others. A drain runs in reverse: gateways close their sessions while acks can still be stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from gateway.processes.limits import (
    GATEWAY_END_MS_MAX,
    RESTART_MS_MAX,
    RESTART_MS_MIN,
    STEADY_MS,
    STORAGE_END_MS_MAX,
)

STORAGE = 0
"""Number of the storage process; gateways count from 1."""
DESK = 1
"""The gateway that serves administration and the console."""
EXIT_FAILED = 1
EXIT_CANNOT_START = 3


class Start(NamedTuple):
    number: int


class Drain(NamedTuple):
    """Asks a process to end in order."""

    number: int


class Kill(NamedTuple):
    number: int


class Serving(NamedTuple):
    """All processes are ready for the first time."""


class Over(NamedTuple):
    exit_code: int
    detail: str


Effect = Start | Drain | Kill | Serving | Over
Phase = Literal["starting", "serving", "draining", "closing", "over"]


@dataclass(slots=True)
class _Process:
    is_alive: bool = False
    is_ready: bool = False
    ready_ms: int = 0
    failures: int = 0
    """How often in a row the process ended before it had served for `STEADY_MS`."""
    start_ms: int | None = None
    """When the process is to be started again."""


@dataclass(slots=True)
class Crew:
    gateways: int
    drain_ms: int
    """The drain window of a gateway."""
    phase: Phase = "starting"
    _all: list[_Process] = field(default_factory=list)
    _why: str = ""
    _exit_code: int = 0
    _deadline_ms: int | None = None

    def __post_init__(self) -> None:
        self._all = [_Process() for _ in range(self.gateways + 1)]

    def begin(self) -> list[Effect]:
        return self._start(STORAGE)

    def is_alive(self, number: int) -> bool:
        return self._all[number].is_alive

    def is_ready(self, number: int) -> bool:
        return self._all[number].is_ready

    # ------------------------------------------------------------------------------------ reports of processes

    def ready(self, number: int, now_ms: int) -> list[Effect]:
        process = self._all[number]
        process.is_ready, process.ready_ms = True, now_ms
        if self.phase != "starting":
            return []
        if number == STORAGE:
            return self._start(DESK)
        if number == DESK:
            others = [effect for other in range(DESK + 1, self.gateways + 1) for effect in self._start(other)]
            return others or self._serve()
        return self._serve() if all(one.is_ready for one in self._all) else []

    def _serve(self) -> list[Effect]:
        self.phase = "serving"
        return [Serving()]

    def failed(self, number: int, detail: str) -> list[Effect]:
        """The process cannot start, and says why before it ends. During the first start this ends the server."""
        if self.phase == "starting" and not self._why:
            self._why, self._exit_code = detail, EXIT_CANNOT_START
        return []

    def ended(self, number: int, exit_code: int, now_ms: int) -> list[Effect]:
        process = self._all[number]
        served_ms = now_ms - process.ready_ms if process.is_ready else 0
        process.is_alive = process.is_ready = False
        match self.phase:
            case "starting":
                self._why = self._why or f"{name_of(number)} exited with code {exit_code} before it was ready"
                self._exit_code = EXIT_CANNOT_START
                return self._drain(now_ms)
            case "serving":
                process.failures = 0 if served_ms >= STEADY_MS else process.failures + 1
                process.start_ms = now_ms + pause_ms(process.failures)
                return []
            case "draining":
                return self._close(now_ms)
            case "closing":
                return self._end() if number == STORAGE else []
        return []

    # ------------------------------------------------------------------------------------------ signals and time

    def asked_to_end(self, now_ms: int) -> list[Effect]:
        """A signal came. A second one does not wait for the drain; confirmed messages are on the disk."""
        if self.phase in ("starting", "serving"):
            return self._drain(now_ms)
        self._exit_code = self._exit_code or EXIT_FAILED
        return [*self._kill(range(self.gateways + 1)), *self._end()]

    def tick(self, now_ms: int) -> list[Effect]:
        """Returns what is due now."""
        found: list[Effect] = []
        for number, process in enumerate(self._all):
            if process.start_ms is not None and process.start_ms <= now_ms:
                found += self._start(number)
        if self._deadline_ms is not None and now_ms >= self._deadline_ms:
            self._deadline_ms = None
            self._exit_code = self._exit_code or EXIT_FAILED
            found += self._kill(range(DESK, self.gateways + 1) if self.phase == "draining" else [STORAGE])
        return found

    def wakes_ms(self) -> int | None:
        """When `tick` is due; None while nothing is."""
        times = [one.start_ms for one in self._all if one.start_ms is not None]
        return min([*times, *([self._deadline_ms] if self._deadline_ms is not None else [])], default=None)

    # ----------------------------------------------------------------------------------------- starting and ending

    def _start(self, number: int) -> list[Effect]:
        process = self._all[number]
        process.is_alive, process.start_ms = True, None
        return [Start(number)]

    def _drain(self, now_ms: int) -> list[Effect]:
        self.phase = "draining"
        for process in self._all:
            process.start_ms = None
        self._deadline_ms = now_ms + self.drain_ms + GATEWAY_END_MS_MAX
        drained: list[Effect] = [Drain(number) for number in self._gateways_alive()]
        return drained or self._close(now_ms)

    def _gateways_alive(self) -> list[int]:
        return [number for number in range(DESK, self.gateways + 1) if self._all[number].is_alive]

    def _close(self, now_ms: int) -> list[Effect]:
        if self._gateways_alive():
            return []
        self.phase = "closing"
        if not self._all[STORAGE].is_alive:
            return self._end()
        self._deadline_ms = now_ms + STORAGE_END_MS_MAX
        return [Drain(STORAGE)]

    def _kill(self, numbers: Sequence[int]) -> list[Effect]:
        return [Kill(number) for number in numbers if self._all[number].is_alive]

    def _end(self) -> list[Effect]:
        self.phase, self._deadline_ms = "over", None
        return [Over(self._exit_code, self._why)]


def pause_ms(failures: int) -> int:
    """The pause in ms before the next start of a process after this many failures in a row."""
    return int(min(RESTART_MS_MAX, RESTART_MS_MIN * 2 ** min(failures, 10)))


def name_of(number: int) -> str:
    return "the storage process" if number == STORAGE else f"gateway process {number}"
