"""Starts, waits for and ends the processes of a cluster on this machine. All calls block."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from gateway.dev_cluster.limits import (
    ASK_SECONDS_MAX,
    END_SECONDS_MAX,
    LOG_TAIL_BYTES,
    LOOK_SECONDS,
    READY_SECONDS_MAX,
)
from gateway.dev_cluster.state import Part, State, save, started_ticks

Say = Callable[[str], None]

_WHEN_TOLD: Final = ("/bin/sh", "-c", 'read -r go && exec "$@" < /dev/null', "sh")
"""Becomes the given program when a line comes; ends if its standard input closes first, as its starter has died."""


class NotReady(Exception):
    """A part did not become ready; the text has the end of its log."""


def start(folder: Path, state: State, parts: Sequence[Part], say: Say) -> None:
    """Starts the parts that do not run, and waits until all are ready. Raises `NotReady`, `OSError`."""
    started = [part for part in parts if not part.is_alive]
    for part in started:
        _launch(folder, state, part)
    for part in parts:
        wait(lambda part=part: _is_ready(part), f"{part.name} is not ready", [part])  # type: ignore[misc]
        say(f"{part.name} is ready" + ("" if part in started else " (it ran already)"))


def wait(is_so: Callable[[], bool], what: str, parts: Sequence[Part]) -> None:
    """Waits until `is_so`. Raises `NotReady`, with a text that begins with `what`, also when one of the parts ends."""

    def is_over() -> bool:
        return not all(part.is_alive for part in parts) or is_so()

    if not becomes(is_over, READY_SECONDS_MAX):
        raise NotReady(f"{what} after {READY_SECONDS_MAX:g} s{_tails(parts)}")
    if dead := [part for part in parts if not part.is_alive]:
        raise NotReady(f"{', '.join(part.name for part in dead)} exited before it was ready{_tails(dead)}")


def end(parts: Sequence[Part], say: Say) -> int:
    """Ends the parts that run, by SIGTERM and, after a time, SIGKILL. Returns how many ran."""
    alive = [part for part in parts if part.is_alive]

    def are_gone() -> bool:
        return not any(part.is_alive for part in alive)

    for part in alive:
        _send(part, signal.SIGTERM)
    if not becomes(are_gone, END_SECONDS_MAX):
        for part in alive:
            _send(part, signal.SIGKILL)
        becomes(are_gone, END_SECONDS_MAX)
    for part in alive:
        say(f"{part.name} ended")
    return len(alive)


def becomes(is_so: Callable[[], bool], within_s: float, *, look_s: float = LOOK_SECONDS) -> bool:
    """Polls `is_so`; returns False if it was not true within `within_s`."""
    deadline = time.monotonic() + within_s
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(look_s)
    return True


def _launch(folder: Path, state: State, part: Part) -> None:
    """Starts the process in a session of its own, so that it survives the terminal, and without the caller's PUSHQ_ and
    ETCD_ variables.

    The process waits until it is recorded in the state, and ends if that fails: no process must run unrecorded.
    """
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PUSHQ_", "ETCD_"))}
    with Path(part.log).open("ab") as log:
        process = subprocess.Popen(
            [*_WHEN_TOLD, *part.argv],
            env=env | part.env,
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            bufsize=0,
            start_new_session=True,
        )
    assert process.stdin is not None
    with process.stdin as line:
        part.pid, part.started = process.pid, started_ticks(process.pid) or 0
        # The process outlives this one, which does not wait for it.
        process.returncode = 0
        save(folder, state)
        with suppress(BrokenPipeError):  # it has ended, which `wait` will report
            line.write(b"\n")


def _is_ready(part: Part) -> bool:
    try:
        with urllib.request.urlopen(part.ready, timeout=ASK_SECONDS_MAX) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _tails(parts: Sequence[Part]) -> str:
    tails = ""
    for part in parts:
        with suppress(OSError):
            tails += f"\n--- {part.log}\n{Path(part.log).read_bytes()[-LOG_TAIL_BYTES:].decode(errors='replace')}"
    return tails


def _send(part: Part, number: signal.Signals) -> None:
    """Signals only the process that was started here, never another one that got its id."""
    if part.pid is not None and part.is_alive:
        with suppress(ProcessLookupError):
            os.kill(part.pid, number)
