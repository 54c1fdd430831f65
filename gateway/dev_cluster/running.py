"""Starting a cluster on this machine, looking at it, and ending it. All of it blocks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from gateway.auth import ADMIN_KEY_FILE
from gateway.dev_cluster import layout
from gateway.dev_cluster.limits import (
    ASK_SECONDS_MAX,
    END_SECONDS_MAX,
    LOG_TAIL_BYTES,
    LOOK_SECONDS,
    READY_SECONDS_MAX,
)
from gateway.dev_cluster.state import Part, Role, State, StateError, load, save, started_ticks
from gateway.masters import MASTER_FILE
from gateway.settings import Model

Say = Callable[[str], None]

_ENDS: Final[tuple[Role, ...]] = ("haproxy", "gateway", "backend", "etcd")
"""Who asks ends before who is asked."""


class NotReady(Exception):
    """A part did not become ready; the text has the end of its log."""


def key_file(folder: Path) -> Path:
    """Where the first key is."""
    return folder / layout.GATEWAYS[0] / ADMIN_KEY_FILE


def up(folder: Path, say: Say, model: Model | None = None) -> State:
    """Starts what does not run, and returns when all are ready. A cluster that was there before has its data again.

    `model`: of a new one; None is that of one that exists, or the default. Raises `MissingProgram`, `CaError`,
    `StateError`, `NotReady`, `OSError`. What runs by then stays: `down` ends it.
    """
    folder = folder.absolute()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    state = load(folder)
    if state is None:
        state = layout.make(folder, model or "leader_follower")
        save(folder, state)
    elif model is not None and model != layout.model_of(state):
        raise StateError(
            f"the cluster in {folder} is of the model {layout.model_of(state)}, which stays; "
            "choose another folder with --directory"
        )
    _start(folder, state, state.of("etcd"), say)
    _start(folder, state, state.of("backend"), say)
    _wait(lambda: bool(leaders(state)), "no backend leads", state.of("backend"))
    first, *others = state.of("gateway")
    _start(folder, state, [first], say)
    for other in others:
        _give_keys(folder / first.name, folder / other.name)
    _start(folder, state, others, say)
    _start(folder, state, state.of("haproxy"), say)
    return state


def down(folder: Path, say: Say) -> int:
    """Ends what runs; how many did. Raises `StateError`, `OSError`."""
    folder = folder.absolute()
    state = load(folder)
    if state is None:
        return 0
    ended = 0
    for role in _ENDS:
        alive = [part for part in state.of(role) if part.is_alive]
        for part in alive:
            _send(part, signal.SIGTERM)
        if not _becomes(lambda parts=alive: not any(part.is_alive for part in parts), END_SECONDS_MAX):  # type: ignore[misc]
            for part in alive:
                _send(part, signal.SIGKILL)
            _becomes(lambda parts=alive: not any(part.is_alive for part in parts), END_SECONDS_MAX)  # type: ignore[misc]
        for part in alive:
            say(f"{part.name} ended")
        ended += len(alive)
    for part in state.parts:
        part.pid = part.pid if part.is_alive else None
    save(folder, state)
    return ended


def leaders(state: State) -> dict[int, dict[str, Any]]:
    """Shard → who serves it now (`leader`), since which epoch, and who is in sync, as the backends say."""
    found: dict[int, dict[str, Any]] = {}
    for part in state.of("backend"):
        if not part.is_alive:
            continue
        with suppress(OSError, ValueError), urllib.request.urlopen(part.ready, timeout=ASK_SECONDS_MAX) as answer:
            for shard in json.load(answer)["shards"]:
                known = found.get(shard["shard"])
                if shard["is_serving"] and (known is None or known["epoch"] < shard["epoch"]):
                    found[shard["shard"]] = {
                        "shard": shard["shard"],
                        "leader": part.name,
                        "epoch": shard["epoch"],
                        "in_sync": shard["in_sync"],
                    }
    return found


def _start(folder: Path, state: State, parts: Sequence[Part], say: Say) -> None:
    started = [part for part in parts if not part.is_alive]
    for part in started:
        _launch(folder, part)
        save(folder, state)
    for part in parts:
        _wait(lambda part=part: _is_ready(part), f"{part.name} is not ready", [part])  # type: ignore[misc]
        say(f"{part.name} is ready" + ("" if part in started else " (it ran already)"))


def _launch(folder: Path, part: Part) -> None:
    """In a session of its own: it goes on when the terminal is closed. It has none of the settings around it."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PUSHQ_", "ETCD_"))}
    with Path(part.log).open("ab") as log:
        process = subprocess.Popen(
            part.argv,
            env=env | part.env,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    part.pid, part.started = process.pid, started_ticks(process.pid) or 0
    # It outlives this process; nobody here waits for it.
    process.returncode = 0


def _give_keys(source: Path, target: Path) -> None:
    """The master key, by which the next gateway reads what the first one sealed, and the administrator's."""
    target.mkdir(mode=0o700, exist_ok=True)
    for name in (MASTER_FILE, ADMIN_KEY_FILE):
        if not (target / name).exists():
            fresh = target / f".{name}.new"
            fresh.unlink(missing_ok=True)
            with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
                out.write((source / name).read_bytes())
            fresh.replace(target / name)


def _is_ready(part: Part) -> bool:
    try:
        with urllib.request.urlopen(part.ready, timeout=ASK_SECONDS_MAX) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _wait(is_so: Callable[[], bool], what: str, parts: Sequence[Part]) -> None:
    def is_over() -> bool:
        return not all(part.is_alive for part in parts) or is_so()

    if not _becomes(is_over, READY_SECONDS_MAX):
        raise NotReady(f"{what} after {READY_SECONDS_MAX:g} s{_tails(parts)}")
    if dead := [part for part in parts if not part.is_alive]:
        raise NotReady(f"{', '.join(part.name for part in dead)} ended before it was ready{_tails(dead)}")


def _becomes(is_so: Callable[[], bool], within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_SECONDS)
    return True


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
