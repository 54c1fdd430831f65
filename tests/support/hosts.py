"""Simulated hosts: network namespaces on this machine, each with its own addresses, DNS settings and /run.

A namespace has no name, and lives as long as the process that holds it, which ends with the test. Programs in it cannot
reach any other network.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.environment import without_settings
from tests.support.forked import Forked
from tests.support.patience import PATIENCE_S
from tests.support.prerequisites import require

HELD_S_MAX = PATIENCE_S
END_S_MAX = PATIENCE_S
RUN_S_MAX = PATIENCE_S
_ROOT = Path(__file__).resolve().parents[2]
_HOLD = """
ip link set lo up
mount -t tmpfs tmpfs /run
echo held
exec cat
"""


class NoNamespaces(AssertionError):
    """This machine or user cannot create network namespaces; the message says what is missing."""


class Host:
    """A network namespace with its own mount namespace. Its processes end with the `with` block."""

    def __init__(self, name: str, folder: Path) -> None:
        """`folder`: for its files and logs."""
        self.name = name
        self._folder = folder
        self._holder: subprocess.Popen[str] | None = None
        self._started: list[subprocess.Popen[bytes] | Forked] = []

    def __enter__(self) -> Self:
        command = [require("unshare"), "--net", "--mount", "--propagation=private", "sh", "-ec", _HOLD]
        require("ip")
        self._holder = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self._holder.stdout is not None and self._holder.stderr is not None
        if self._holder.stdout.readline() != "held\n":
            said = self._holder.stderr.read().strip()
            self._let_go()
            raise NoNamespaces(
                f"this test could not create network namespaces: {said}. It needs root with CAP_SYS_ADMIN and"
                f" CAP_NET_ADMIN, and a kernel with network namespaces (uid {os.geteuid()} here)"
            )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for process in self._started:
            end(process)
        self._let_go()

    @property
    def pid(self) -> int:
        assert self._holder is not None, "the host is not running"
        return self._holder.pid

    def path(self, inside: str) -> Path:
        """The path by which this process reaches a file of the host."""
        return Path(f"/proc/{self.pid}/root{inside}")

    def log(self, name: str) -> str:
        return self._log_path(name).read_text(errors="replace")

    def command(self, *arguments: str) -> list[str]:
        """The command line that runs `arguments` on the host."""
        return [require("nsenter"), f"--target={self.pid}", "--net", "--mount", "--", *arguments]

    def run(self, *arguments: str, env: dict[str, str] | None = None) -> str:
        """Runs a command to its end, which must be successful; returns its output."""
        ran = subprocess.run(
            self.command(*arguments),
            env=_clean() | (env or {}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=RUN_S_MAX,
        )
        assert ran.returncode == 0, f"{self.name}: {' '.join(arguments)} ended with {ran.returncode}: {ran.stderr}"
        return ran.stdout

    def start(self, name: str, *arguments: str, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Starts a program in the background; it is killed with the test process, even if the block does not end."""
        command = self.command(require("setpriv"), "--pdeathsig", "KILL", *arguments)
        with self._log_path(name).open("ab") as log:
            process = subprocess.Popen(
                command, env=_clean() | (env or {}), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        self._started.append(process)
        return process

    def start_pushq(self, name: str, *arguments: str, env: dict[str, str] | None = None) -> Forked:
        """Like `start`, for `pushq`."""
        with self._log_path(name).open("ab") as log:
            process = Forked(
                ["gateway", *arguments],
                cwd=_ROOT,
                env=_clean() | (env or {}),
                stdout=log,
                stderr=subprocess.STDOUT,
                beside=self.pid,
            )
        self._started.append(process)
        return process

    def start_talking(self, name: str, *arguments: str, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Like `start`, with a pipe to stdin, and stdout in a separate file."""
        command = self.command(require("setpriv"), "--pdeathsig", "KILL", *arguments)
        with self._log_path(name).open("ab") as log, self.stdout_of(name).open("ab") as out:
            process = subprocess.Popen(
                command, env=_clean() | (env or {}), stdin=subprocess.PIPE, stdout=out, stderr=log
            )
        self._started.append(process)
        return process

    def stdout_of(self, name: str) -> Path:
        """The output of a program started by `start_talking`."""
        return self._folder / f"{self.name}.{name}.out"

    def resolve_with(self, address: str) -> None:
        """Makes programs on this host query the DNS server at `address` (port 53) and no other."""
        settings = self._folder / f"{self.name}.resolv.conf"
        settings.write_text(f"nameserver {address}\noptions timeout:1 attempts:2\n")
        self.run("mount", "--bind", str(settings), "/etc/resolv.conf")
        switch = self._folder / f"{self.name}.nsswitch.conf"
        switch.write_text("hosts: files dns\n")
        self.run("mount", "--bind", str(switch), "/etc/nsswitch.conf")

    def _log_path(self, name: str) -> Path:
        return self._folder / f"{self.name}.{name}.log"

    def _let_go(self) -> None:
        assert self._holder is not None
        self._holder.kill()
        self._holder.wait(END_S_MAX)
        for pipe in (self._holder.stdin, self._holder.stdout, self._holder.stderr):
            assert pipe is not None
            pipe.close()


def _clean() -> dict[str, str]:
    """The environment without the user's Pushq settings."""
    return without_settings()


def end(process: subprocess.Popen[bytes] | Forked) -> None:
    """Sends SIGKILL, unless it has ended."""
    process.kill()
    process.wait(END_S_MAX)
    if isinstance(process, subprocess.Popen) and process.stdin is not None:
        process.stdin.close()


def wire(switch: Host, hosts: Sequence[tuple[Host, str]]) -> None:
    """Connects each host to a switch, as `eth0` with an address such as `192.0.2.11/24`."""
    switch.run("ip", "link", "add", "br0", "type", "bridge", "forward_delay", "0")
    switch.run("ip", "link", "set", "br0", "up")
    for host, address in hosts:
        port = f"p-{host.name}"
        switch.run("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(host.pid))
        switch.run("ip", "link", "set", port, "master", "br0", "up")
        host.run("ip", "address", "add", address, "dev", "eth0")
        host.run("ip", "link", "set", "eth0", "up")
