"""The file `cluster.json`: the processes of clusters on this machine, and whether they are alive."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

import msgspec

from gateway.dev_cluster.limits import LOOK_SECONDS, TURN_SECONDS_MAX

FILE: Final = "cluster.json"
VERSION: Final = 1
"""A file of this version has no field `version`; later ones do."""
LOCK_FILE: Final = ".cluster.lock"
HOME: Final = "main"
"""The home cluster, which has the definitions of all queues."""

Role = Literal["etcd", "backend", "gateway", "manager", "haproxy"]


class StateError(Exception):
    """The state cannot be read; the text says why."""


class Part(msgspec.Struct, forbid_unknown_fields=True):
    """One process. A process id alone is ambiguous, as ids are reused: it is compared with the time of the start."""

    role: Role
    name: str
    address: str
    """`HOST:PORT` where other processes, or clients, reach it."""
    ready: str
    """The URL that answers 200 once it is ready."""
    argv: list[str]
    env: dict[str, str]
    log: str
    pid: int | None = None
    started: int = 0
    """Ticks since the machine's start; with `pid` it identifies a process for ever."""
    cluster: str = HOME
    """The cluster of a backend; without meaning for other parts."""
    number: int = 0
    """Of a backend, from 1 in each cluster. Never reused: the cluster remembers that a backend was removed."""
    is_leaving: bool = False
    """Of a backend: the cluster was asked to remove it."""
    has_left: bool = False
    """Of a leaving backend: it has handed over all its copies, and is ended, deleted and forgotten in any case."""

    @property
    def is_alive(self) -> bool:
        return self.pid is not None and started_ticks(self.pid) == self.started


class State(msgspec.Struct, forbid_unknown_fields=True):
    """All parts, in the order in which they start."""

    parts: list[Part]
    last: dict[str, int] = {}
    """By cluster, the highest number that a backend had."""

    def of(self, role: Role) -> list[Part]:
        return [part for part in self.parts if part.role == role]

    def backends_of(self, cluster: str) -> list[Part]:
        return [part for part in self.of("backend") if part.cluster == cluster]

    @property
    def clusters(self) -> list[str]:
        """The names of the clusters, the home cluster first."""
        return list(dict.fromkeys(part.cluster for part in self.of("backend")))

    @property
    def public(self) -> Part:
        """Where clients connect: the balancer, or else the first gateway."""
        return (self.of("haproxy") or self.of("gateway"))[0]


def started_ticks(pid: int) -> int | None:
    """When a process was started; None if there is none, or only a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else int(fields[19])


def load(folder: Path) -> State | None:
    """The state of a folder; None if no cluster was started there. Raises `StateError`."""
    file = folder / FILE
    try:
        return msgspec.json.decode(file.read_bytes(), type=State)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        if (version := _version(file)) > VERSION:
            raise StateError(
                f"{file} has format {version}, but this version of Pushq reads format {VERSION}: use the newer "
                "version that started the cluster to stop it"
            ) from None
        raise StateError(f"cannot read {file}: {error}; stop its processes by hand and delete the folder") from None


class _Versioned(msgspec.Struct):
    """The field that files of any version have."""

    version: int = VERSION


def _version(file: Path) -> int:
    try:
        return msgspec.json.decode(file.read_bytes(), type=_Versioned).version
    except (OSError, msgspec.MsgspecError):
        return VERSION


def save(folder: Path, state: State) -> None:
    """Replaces the file atomically: readers see the old state or the new one. Raises `OSError`."""
    fresh = folder / f".{FILE}.new"
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:
        out.write(msgspec.json.format(msgspec.json.encode(state)))
    fresh.replace(folder / FILE)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Holds the folder's lock against other commands. Raises `StateError` if it is held for too long, `OSError`."""
    lock = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        deadline = time.monotonic() + TURN_SECONDS_MAX
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise StateError(f"another command is changing the cluster in {folder}; try again later") from None
            time.sleep(LOOK_SECONDS)
        yield
    finally:
        os.close(lock)
