"""Starts a real Redis as a separate process, for tests whose promise is about that server.

It listens on a free local port, stores nothing on disk, and can be killed, frozen and restarted on the same port.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import time
from types import TracebackType
from typing import Self

from tests.support.patience import PATIENCE_S
from tests.support.prerequisites import require
from tests.support.server import free_port

READY_S_MAX = PATIENCE_S
POLL_S = 0.01


class RedisFailed(AssertionError):
    """Redis did not start."""


class RedisServer:
    """One Redis. `start` after `kill` reuses the port, without data."""

    def __init__(self, *, password: str = "") -> None:
        self.port = free_port()
        self._password = password
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        credentials = f":{self._password}@" if self._password else ""
        return f"redis://{credentials}127.0.0.1:{self.port}/0"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.kill()

    def start(self) -> Self:
        """Starts it, and waits until it responds."""
        assert self._process is None, "Redis is already running"
        command = [require("redis-server"), "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
        command += ["--appendonly", "no", "--loglevel", "warning", "--dir", "/tmp"]
        if self._password:
            command += ["--requirepass", self._password]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + READY_S_MAX
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RedisFailed(f"redis-server was not ready on port {self.port}")
            time.sleep(POLL_S)
        return self

    def kill(self) -> None:
        """Sends SIGKILL; does nothing if it is not running."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def freeze(self) -> None:
        """Suspends it: the kernel still accepts connections, but nothing answers."""
        self._running().send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._running().send_signal(signal.SIGCONT)

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1) as peer:
            peer.sendall(b"PING\r\n")
            return peer.recv(64)[:1] in (b"+", b"-")  # an error counts too: it asks for the password
        return False

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RedisFailed("Redis is not running")
        return self._process
