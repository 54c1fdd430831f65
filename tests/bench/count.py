"""Counts the instructions that the server executes per message, which vary less on a busy machine than rates do.

The server runs under Valgrind's Callgrind, which counts what the process executes, excluding the kernel. Each batch is
sent after the previous one is done, so that loop turns and commits always have the same amount of work.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple, Protocol

import uvloop

from tests.bench.scale import HTTP_CONNECTIONS, WINDOW, WINDOW_WIDE
from tests.bench.scenario_duties import ALL, FRONT, NONE, Duties, serving
from tests.bench.scenario_duties import publish as publish_duty
from tests.bench.scenario_duties import work as work_duty
from tests.bench.scenario_work import Bench
from tests.bench.sides import HttpSide, PublishSide, Way
from tests.bench.turns import OpenSide
from tests.bench.world import Server, World

BATCHES: Final = 12
BATCHES_BEFORE: Final = 3
"""Warm-up: later batches reuse what these create."""
_COMMAND_SECONDS_MAX: Final = 60
_SMALL_MAP: Final = str(Path(__file__).with_name("small_map.py"))
_UNHURRIED: Final = {"PUSHQ_OVERLOAD__LAG_MS_MAX": "60000", "PUSHQ_OVERLOAD__SOJOURN_MS_MAX": "60000"}
"""Under Callgrind a server is fifty times slower, which must not count as overload."""


class NoCounter(Exception):
    """Valgrind is missing, or does not do what it was asked."""


async def _publish(side: PublishSide, window: int = WINDOW) -> int:
    side.publisher.send(window)
    await side.rest()
    return window


async def _work(bench: Bench, window: int = WINDOW) -> int:
    bench.publisher.send(window)
    await bench.rest()
    return window


async def _http(side: HttpSide) -> int:
    side.begin()
    await side.rest()
    return HTTP_CONNECTIONS


class Serve(Protocol):
    """A server of a checkout, with a prefix for its command and additions to its environment."""

    def __call__(
        self, world: World, tree: Path, *, env: Mapping[str, str], below: Sequence[str]
    ) -> AbstractContextManager[Server]: ...


@contextmanager
def _plainly(world: World, tree: Path, *, env: Mapping[str, str], below: Sequence[str]) -> Iterator[Server]:
    with world.server(tree, below=below, env=dict(env)) as server:
        yield server


class Counted(NamedTuple):
    open_side: OpenSide
    step: Callable[[Any], Awaitable[int]]
    """Sends a batch, waits until it is done, and returns its number of messages."""
    serve: Serve = _plainly


def _publish_duty(duties: Duties) -> Counted:
    return Counted(
        partial(publish_duty, duties=duties), partial(_publish, window=WINDOW_WIDE), partial(serving, duties)
    )


def _work_duty(duties: Duties) -> Counted:
    return Counted(partial(work_duty, duties=duties), partial(_work, window=WINDOW_WIDE), partial(serving, duties))


_DUTIES: Final = {
    "none": NONE,
    "encryption": Duties(is_encrypted=True),
    "limits": Duties(is_limited=True),
    "keys": Duties(has_keys=True),
    "tls": Duties(is_tls=True),
    "front": FRONT,
    "all": ALL,
}

_PLAIN: Final[Mapping[str, Counted]] = {
    "publish": Counted(Way().publish, _publish),
    "work": Counted(Way().work, _work),
    "single-publish": Counted(Way(per_frame=1).publish, _publish),
    "single-work": Counted(Way(per_frame=1, ack_singly=True).work, _work),
    "http-publish": Counted(Way().http, _http),
}
COUNTED: Final[Mapping[str, Counted]] = {
    **_PLAIN,
    **{f"duty-{name}": _publish_duty(duties) for name, duties in _DUTIES.items()},
    **{f"duty-{name}-work": _work_duty(duties) for name, duties in _DUTIES.items()},
}


def counted_names(names: Sequence[str]) -> list[str]:
    """Plain queues by default. Raises `ValueError`."""
    for name in names:
        if name not in COUNTED:
            raise ValueError(f"{name!r} cannot be counted, only {', '.join(COUNTED)}")
    return list(names or _PLAIN)


def count(counted: Counted, world: World, tree: Path, *, batches: int = BATCHES) -> int:
    """Instructions per message, of a checkout's server. Raises `NoCounter`."""
    if shutil.which("valgrind") is None or shutil.which("vgdb") is None:
        raise NoCounter("valgrind was not found; install it: apt-get install valgrind")
    return uvloop.run(_count(counted, world, tree, batches))


async def _count(counted: Counted, world: World, tree: Path, batches: int) -> int:
    with TemporaryDirectory(prefix="pushq-count-", dir=world.folder) as place:
        counts = Path(place) / "counts"
        valgrind = ("valgrind", "--quiet", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={counts}")
        below = (*valgrind, sys.executable, _SMALL_MAP)
        with counted.serve(world, tree, env=_UNHURRIED, below=below) as server:
            side = await counted.open_side(server)
            for _ in range(BATCHES_BEFORE):
                await counted.step(side)
            _tell(server.process.pid, "instrumentation", "on")
            messages = sum([await counted.step(side) for _ in range(batches)])
            _tell(server.process.pid, "dump")
            await side.finish()
        return _total(counts.with_name("counts.1")) // messages


def _tell(pid: int, *words: str) -> None:
    command = ["vgdb", f"--pid={pid}", *words]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=_COMMAND_SECONDS_MAX)
    except (OSError, subprocess.SubprocessError) as error:
        raise NoCounter(f"{' '.join(command)}: {error}") from None


def _total(counts: Path) -> int:
    """The total of all functions, from the end of Callgrind's output."""
    totals = [line for line in counts.read_text().splitlines() if line.startswith("totals: ")]
    if not totals:
        raise NoCounter(f"{counts} has no total")
    return int(totals[-1].split()[1])
