"""Starts the real `pushq serve` as a separate process, for tests whose promise is about that process.

The methods block. An async test whose clients must run meanwhile calls them through `anyio.to_thread.run_sync`.
"""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from tests.support.environment import SMALL_FOLDERS, without_settings
from tests.support.forked import Forked
from tests.support.patience import PATIENCE_S

READY_S_MAX = PATIENCE_S
STOP_S_MAX = PATIENCE_S
POLL_S = 0.02
LOG_TAIL_BYTES = 8_000
UNHURRIED = {
    "PUSHQ_LIMITS__ACCEPTS_PER_S": "1000000",
    "PUSHQ_LIMITS__ACCEPTS_BURST": "1000000",
    "PUSHQ_OVERLOAD__LAG_MS_MAX": "5000",
}
"""A test's clients all connect at once, on a busy machine: that must not count as overload of the server."""
SOON_BACK = {"PUSHQ_RESUME_MS": "500"}
"""Events sent to a reader that has left are redelivered after this time, for tests that wait for it."""
_ROOT = Path(__file__).resolve().parents[2]


class Stopped(NamedTuple):
    """How a server ended after SIGTERM."""

    seconds: float
    exit_code: int


class ServerFailed(AssertionError):
    """The server did not do something that tests rely on; the message contains the end of its log."""


def free_port() -> int:
    """A port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class PushqServer:
    """One server on one data folder. `start` after `kill` or `stop` uses the same data and port."""

    program: Sequence[str] = ("gateway",)
    """The module that is run, and the arguments before `role`."""
    role: str = "serve"
    """The command that starts it."""

    def __init__(
        self,
        data: Path,
        *extra: str,
        dev: bool = False,
        env: dict[str, str] | None = None,
        tree: Path | None = None,
        tls: ssl.SSLContext | None = None,
        below: Sequence[str] = (),
    ) -> None:
        """`tls`: the context for a server whose settings in `env` enable TLS. `below`: a command that is given `-m` and
        the rest of the server's command line, and becomes its process.
        """
        self.data = data
        self.tree = tree or _ROOT
        """The checkout that the server runs from."""
        self.is_forked = tree is None and not below and "PYTHONPATH" not in (env or {})
        """A named checkout is measured, so it must start and use memory as it does for its users; and anything needed
        before the first import must find it there."""
        self.extra = extra
        self._below = below
        self.dev = dev
        self.port = free_port()
        self.tls = tls
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self.port}"
        self.log_path = data.with_name(data.name + ".log")
        self._env = env or {}
        self._process: Forked | subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.kill()

    @property
    def ws_url(self) -> str:
        return f"ws{'s' if self.tls else ''}://127.0.0.1:{self.port}/v1/ws"

    @property
    def key(self) -> str:
        """The admin key created at the first start."""
        return (self.data / "admin.key").read_text().strip()

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}

    @property
    def pid(self) -> int:
        return self._running().pid

    def start(self, *, ready_s_max: float = READY_S_MAX) -> Self:
        """Starts it, and waits until `/readyz` answers 200."""
        self.launch()
        deadline = time.monotonic() + ready_s_max
        while not self.is_ready():
            code = self._running().poll()
            if code is not None:
                self._process = None
                raise ServerFailed(f"pushq serve ended with exit code {code} before it was ready\n{self.log_tail()}")
            if time.monotonic() > deadline:
                self.kill()
                raise ServerFailed(f"pushq serve was not ready after {ready_s_max:g} s\n{self.log_tail()}")
            time.sleep(POLL_S)
        return self

    def launch(self) -> None:
        """Starts the process and returns at once."""
        assert self._process is None, "the server is already running"
        command = [*self.program, self.role, "--data", str(self.data)]
        command += ["--listen", f"127.0.0.1:{self.port}", *(["--dev"] if self.dev else []), *self.extra]
        # The user's settings must not reach the server under test.
        env = without_settings()
        if self.tree == _ROOT:
            env |= UNHURRIED | SMALL_FOLDERS
        # In its own session, so that a kill reaches its children, too.
        how: dict[str, Any] = {"cwd": self.tree, "env": env | self._env, "start_new_session": True}
        with self.log_path.open("ab") as log:
            how |= {"stdout": log, "stderr": subprocess.STDOUT}
            if self.is_forked:
                self._process = Forked(command, **how)
            else:
                command = [*(self._below or [sys.executable]), "-m", *command]
                self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, **how)

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=1, context=self.tls) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """Sends SIGKILL to the process and its children; does nothing if it is not running."""
        if self._process is None:
            return
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait(STOP_S_MAX)
        self._process = None

    def terminate(self) -> None:
        """Sends SIGTERM, without waiting for the end."""
        self._running().send_signal(signal.SIGTERM)

    def stop(self) -> Stopped:
        """Sends SIGTERM, and waits for the end of the process."""
        began = time.monotonic()
        self.terminate()
        return self.wait(began)

    def wait(self, began: float | None = None, *, seconds_max: float = STOP_S_MAX) -> Stopped:
        """Waits for the end of the process; seconds count from `began` (monotonic) or from now."""
        began = time.monotonic() if began is None else began
        try:
            code = self._running().wait(seconds_max)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ServerFailed(f"pushq serve had not ended after {seconds_max:g} s\n{self.log_tail()}") from None
        self._process = None
        return Stopped(time.monotonic() - began, code)

    def restart(self) -> Self:
        """Stops it cleanly, and starts it again on the same folder and port."""
        self.stop()
        return self.start()

    def log(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def log_tail(self) -> str:
        return f"--- end of {self.log_path.name} ---\n{self.log()[-LOG_TAIL_BYTES:]}"

    def rss_anon_kib(self) -> int:
        """Private memory; mapped database pages belong to the page cache and do not count."""
        return self._status_kib("RssAnon")

    def cpu_s(self) -> float:
        """CPU seconds used so far, user and system."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _status_kib(self, name: str) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1])
        raise ServerFailed(f"/proc/{self.pid}/status has no {name}")

    def _running(self) -> Forked | subprocess.Popen[bytes]:
        if self._process is None:
            raise ServerFailed("the server is not running")
        return self._process
