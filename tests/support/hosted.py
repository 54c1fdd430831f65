"""Programs on a simulated host: `pushq serve`, a DNS server, and a server that accepts connections and stays silent."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.environment import SMALL_FOLDERS
from tests.support.forked import Forked
from tests.support.hosts import Host, end
from tests.support.patience import PATIENCE_S, until
from tests.support.prerequisites import require
from tests.support.server import UNHURRIED

READY_S_MAX = PATIENCE_S
NAME_TTL_S = 1
_SILENT = "import socket, sys, time; s = socket.create_server((sys.argv[1], int(sys.argv[2]))); time.sleep(3600)"


class HostedPushq:
    """`pushq serve` on a host. `start` after `kill` uses the same data, at the same or another address."""

    def __init__(self, host: Host, data: Path, listen: str, env: dict[str, str] | None = None) -> None:
        """`listen`: `HOST:PORT`."""
        self.host = host
        self.data = data
        self.listen = listen
        self._env = env or {}
        self._process: Forked | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.kill()

    @property
    def key(self) -> str:
        return (self.data / "admin.key").read_text().strip()

    def start(self, listen: str | None = None) -> Self:
        """Starts it, and waits until it listens."""
        self.listen = listen or self.listen
        command = ["serve", "--data", str(self.data), "--listen", self.listen]
        self._process = process = self.host.start_pushq("pushq", *command, env=UNHURRIED | SMALL_FOLDERS | self._env)
        until(
            lambda: process.poll() is not None or accepts(self.host, self.listen),
            lambda: self.host.log("pushq"),
            within_s=READY_S_MAX,
        )
        assert process.poll() is None, self.host.log("pushq")
        return self

    def create_queue(self, name: str, **config: Any) -> None:
        """Sends a request directly to the server, which must not expect a PROXY header."""
        command = ["curl", "--fail-with-body", "--silent", "--request", "PUT", "--json", json.dumps(config)]
        command += ["--header", f"Authorization: Bearer {self.key}"]
        self.host.run(*command, f"http://{self.listen}/v1/queues/{name}")

    def kill(self) -> None:
        if self._process is not None:
            end(self._process)
            self._process = None


def accepts(host: Host, listen: str) -> bool:
    """Whether a process on `host` listens at `listen`."""
    address, _, port = listen.rpartition(":")
    return host.run("ss", "--no-header", "--tcp", "--listening", "--numeric", f"src {address} and sport = {port}") != ""


def name_server(host: Host, names: Mapping[str, Sequence[str]], address: str = "127.0.0.1") -> None:
    """Starts the real dnsmasq, which answers each name with all its addresses in rotating order."""
    records = [f"--host-record={name},{each},{NAME_TTL_S}" for name, several in names.items() for each in several]
    settings = ["--keep-in-foreground", "--no-resolv", "--no-hosts", "--bind-interfaces", "--conf-file=/dev/null"]
    settings += ["--user=root", "--pid-file", f"--listen-address={address}", "--except-interface=none"]
    process = host.start("dnsmasq", require("dnsmasq"), *settings, *records)
    until(
        lambda: process.poll() is not None or accepts(host, f"{address}:53"),
        lambda: host.log("dnsmasq"),
        within_s=READY_S_MAX,
    )
    assert process.poll() is None, host.log("dnsmasq")
    host.resolve_with(address)


def silent(host: Host, listen: str) -> None:
    """Starts a server that accepts connections and never responds."""
    address, _, port = listen.rpartition(":")
    host.start("silent", sys.executable, "-c", _SILENT, address, port)
    until(lambda: accepts(host, listen), lambda: host.log("silent"), within_s=READY_S_MAX)
