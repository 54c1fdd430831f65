"""The processes of a cluster on this machine, one by one: started, waited for, ended. All of it blocks."""

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
"""Becomes the program behind it when a line comes, and ends without one when whoever started it has died."""


class NotReady(Exception):
    """A part did not become ready; the text has the end of its log."""


def start(folder: Path, state: State, parts: Sequence[Part], say: Say) -> None:
    """Those that do not run, and waits until all of them are ready. Raises `NotReady`, `OSError`."""
    started = [part for part in parts if not part.is_alive]
    for part in started:
        _launch(folder, state, part)
    for part in parts:
        wait(lambda part=part: _is_ready(part), f"{part.name} is not ready", [part])  # type: ignore[misc]
        say(f"{part.name} is ready" + ("" if part in started else " (it ran already)"))


def wait(is_so: Callable[[], bool], what: str, parts: Sequence[Part]) -> None:
    """Until it is so. Raises `NotReady`, which begins with `what`, also when one of the parts ends."""

    def is_over() -> bool:
        return not all(part.is_alive for part in parts) or is_so()

    if not becomes(is_over, READY_SECONDS_MAX):
        raise NotReady(f"{what} after {READY_SECONDS_MAX:g} s{_tails(parts)}")
    if dead := [part for part in parts if not part.is_alive]:
        raise NotReady(f"{', '.join(part.name for part in dead)} ended before it was ready{_tails(dead)}")


def end(parts: Sequence[Part], say: Say) -> int:
    """Those that run, by SIGTERM, and who takes too long by SIGKILL; how many did."""
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
    """Looks again and again; False where it was not so in that time."""
    deadline = time.monotonic() + within_s
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(look_s)
    return True


def _launch(folder: Path, state: State, part: Part) -> None:
    """In a session of its own: it goes on when the terminal is closed. It has none of the settings around it.

    It waits until it is written down, and ends where that does not come: one that runs unknown would be nobody's.
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
        # It outlives this process; nobody here waits for it.
        process.returncode = 0
        save(folder, state)
        with suppress(BrokenPipeError):  # it has ended, as who waits for it will say
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
    """Only to the process that was started here: a number that came again is somebody else's."""
    if part.pid is not None and part.is_alive:
        with suppress(ProcessLookupError):
            os.kill(part.pid, number)
