"""A real `pushq serve --gateways N`, whose processes a test can find and kill by name."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path
from typing import Self

import httpx2

from tests.support.patience import PATIENCE_S
from tests.support.server import PushqServer, ServerFailed

WAIT_S = PATIENCE_S


class SeveralServer(PushqServer):
    """Like `PushqServer`; `kill` also reaches the children, which have their own process groups."""

    def __init__(self, data: Path, *extra: str, gateways: int = 2, env: dict[str, str] | None = None) -> None:
        super().__init__(data, *extra, env=env)
        self.gateways = gateways
        self._flags = extra

    def launch(self) -> None:
        self.extra = (*self._flags, *(("--gateways", str(self.gateways)) if self.gateways > 1 else ()))
        super().launch()

    def start(self, *, ready_s_max: float = WAIT_S) -> Self:
        super().start(ready_s_max=ready_s_max)
        if self.gateways > 1:
            self.all_there()
        return self

    def all_there(self) -> dict[str, int]:
        """Waits until all processes serve; returns their pids by name: `storage`, `gateway-1` …"""
        names = {"storage", *(f"gateway-{number}" for number in range(1, self.gateways + 1))}
        deadline = time.monotonic() + WAIT_S
        while not (set(found := self.children()) == names and all(self._is_ready(one) for one in names - {"storage"})):
            if time.monotonic() > deadline or not self.is_running():
                raise ServerFailed(f"there are {sorted(found)}, not all of {sorted(names)}\n{self.log_tail()}")
            time.sleep(0.05)
        return found

    def _is_ready(self, name: str) -> bool:
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(5)
            try:
                line.connect(str(self.data / f"{name}.sock"))
                line.sendall(b"GET /readyz HTTP/1.1\r\nhost: pushq\r\nconnection: close\r\n\r\n")
                return line.recv(12) == b"HTTP/1.1 200"
            except OSError:
                return False

    def at(self, number: int) -> httpx2.Client:
        """A client of one gateway process, over its socket in the folder."""
        transport = httpx2.HTTPTransport(uds=str(self.data / f"gateway-{number}.sock"))
        return httpx2.Client(transport=transport, base_url="http://pushq", headers=self.headers, timeout=20)

    def children(self) -> dict[str, int]:
        return children_of(self.pid)

    def kill(self) -> None:
        if self._process is None:
            return
        left = children_of(self._process.pid)
        super().kill()
        for pid in left.values():
            end(pid)
        until_gone(left)


def children_of(parent: int) -> dict[str, int]:
    """Processes of a server, by name."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            arguments = (folder / "cmdline").read_bytes().split(b"\0")
            ppid = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue
        if ppid == parent and b"gateway.processes" in arguments:
            found[arguments[arguments.index(b"gateway.processes") + 1].decode()] = int(folder.name)
    return found


def is_there(pid: int) -> bool:
    """Whether it is running; a zombie does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def end(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def until_gone(pids: dict[str, int], *, within_s: float = WAIT_S) -> None:
    deadline = time.monotonic() + within_s
    while left := {name: pid for name, pid in pids.items() if is_there(pid)}:
        assert time.monotonic() < deadline, f"still there after {within_s} s: {left}"
        time.sleep(0.05)
