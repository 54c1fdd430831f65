"""Starts the real HAProxy with the configuration we ship, on a free port, with a certificate made by the test."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.patience import PATIENCE_S
from tests.support.prerequisites import require
from tests.support.server import free_port
from tests.support.tls import Authority

CONFIG = Path(__file__).resolve().parents[2] / "deploy" / "haproxy" / "haproxy.cfg"
SOURCE = "127.0.0.2"
"""The address that the configuration lets HAProxy connect from."""
READY_S_MAX = PATIENCE_S


class Haproxy:
    """One HAProxy in front of one server. It ends with the `with` block."""

    def __init__(self, folder: Path, authority: Authority, server: str) -> None:
        """`server`: `HOST:PORT` of the server behind it."""
        pair = authority.issue("balancer")
        whole = folder / "haproxy.pem"
        whole.write_bytes(pair.certificate.read_bytes() + pair.key.read_bytes())
        whole.chmod(0o600)
        self.port = free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        self.tls = authority.context()
        self._log = folder / "haproxy.log"
        self._env = os.environ | {
            "PUSHQ_CERT": str(whole),
            "PUSHQ_HTTPS": f"127.0.0.1:{self.port}",
            "PUSHQ_HEALTH": f"127.0.0.1:{free_port()}",
            "PUSHQ_SERVER": server,
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def ws_url(self) -> str:
        return f"wss://127.0.0.1:{self.port}/v1/ws"

    def check(self) -> subprocess.CompletedProcess[str]:
        """HAProxy's verdict on the configuration; a warning counts as an error."""
        return subprocess.run(
            [require("haproxy"), "-c", "-dW", "-f", str(CONFIG)],
            env=self._env,
            capture_output=True,
            text=True,
            check=False,
            timeout=20,
        )

    def __enter__(self) -> Self:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [require("haproxy"), "-db", "-f", str(CONFIG)],
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + READY_S_MAX
        while not self._listens():
            assert self._process.poll() is None and time.monotonic() < deadline, self.log()
            time.sleep(0.02)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def _listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True
