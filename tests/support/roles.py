"""One process of every role, for tests of what all roles promise: their spans, logs and metrics.

gateway  → backend ← manager          messages in a cluster of one
server   → metadata                   messages in the server, definitions elsewhere
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx2

from tests.support.backends import Backend
from tests.support.environment import SMALL_FOLDERS, without_settings
from tests.support.forked import Forked
from tests.support.server import PushqServer, free_port
from tests.support.tls import Authority
from tests.support.traced import SPANS_FILE

NAMES = ("gateway", "backend", "manager", "server", "metadata")
READY_S_MAX = 120
_ROOT = Path(__file__).resolve().parents[2]
_TRACED = "tests.support.traced"


class Role:
    """A role that prints its health address, and `ready`."""

    def __init__(self, name: str, arguments: Sequence[str], folder: Path, env: Mapping[str, str]) -> None:
        self.name = name
        self.log_path = folder / f"{name}.log"
        self.http = ""
        given = without_settings() | SMALL_FOLDERS | dict(env)
        with self.log_path.open("ab") as log:
            self._process = Forked(
                (_TRACED, "gateway", *arguments), env=given, cwd=_ROOT, stdout=subprocess.PIPE, stderr=log
            )

    def __enter__(self) -> Self:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("  health"):
                self.http = line.split()[1].removesuffix("/health")
            if line == "ready\n":
                return self
        raise AssertionError(f"{self.name} did not start: {self.log_path.read_text()[-2000:]}")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        assert self._process.stdout is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.stdout.close()
        self._process.wait(60)


def a_manager(backend: Backend, folder: Path, authority: Authority, env: Mapping[str, str] | None = None) -> Role:
    """A manager of the backend's cluster."""
    wanted = {"PUSHQ_MANAGER__LISTEN": "127.0.0.1:0", "PUSHQ_MANAGER__LOOK_S": "1", SPANS_FILE: str(folder / "spans")}
    return Role("manager", ("manager",), folder, wanted | _ways(backend, authority) | dict(env or {}))


def a_metadata_service(folder: Path, env: Mapping[str, str] | None = None, listen: str = "127.0.0.1:0") -> Role:
    """A metadata service with its data in the subfolder `metadata`."""
    arguments = ("metadata", "--data", str(folder / "metadata"), "--listen", listen)
    return Role("metadata", arguments, folder, {SPANS_FILE: str(folder / "spans"), **(env or {})})


def _ways(backend: Backend, authority: Authority) -> dict[str, str]:
    pair = authority.issue("gateway")
    return {
        "PUSHQ_STORE__BACKENDS": backend.service,
        "PUSHQ_STORE__TLS_CERT": str(pair.certificate),
        "PUSHQ_STORE__TLS_KEY": str(pair.key),
        "PUSHQ_STORE__TLS_CA": str(authority.certificate),
    }


class _OfMetadata(PushqServer):
    """A server whose keys are at the metadata service."""

    key_file: Path

    @property
    def key(self) -> str:
        return self.key_file.read_text().strip()


class Roles:
    def __init__(self, folder: Path, env: Mapping[str, Mapping[str, str]] | None = None) -> None:
        """`env`: settings by role; those under "" apply to all."""
        self.folder = folder
        self._env = env or {}
        self._stack = ExitStack()
        self.gateway: PushqServer
        self.server: PushqServer
        self.pages: dict[str, str] = {}
        """The metrics URL of each role."""

    def __enter__(self) -> Self:
        with self._stack:
            self._start()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _start(self) -> None:
        folder = self.folder
        listen = f"127.0.0.1:{free_port()}"
        data = folder / "metadata"
        metadata = self._stack.enter_context(a_metadata_service(folder, self._of("metadata"), listen))
        authority = Authority(folder / "authority")
        program = (_TRACED, "gateway")
        backend = Backend("backend", folder, authority, "embedded", (*program, "backend"), env=self._of("backend"))
        backend.start()
        self._stack.callback(backend.end)
        manager = self._stack.enter_context(a_manager(backend, folder, authority, self._of("manager")))
        ways = _ways(backend, authority)
        self.gateway = PushqServer(folder / "gateway", env={**ways, **self._of("gateway")})
        self.gateway.role = "gateway"
        kept = {"PUSHQ_METADATA__URL": f"ws://{listen}", "PUSHQ_METADATA__SECRET_FILE": str(data / "metadata.secret")}
        self.server = _OfMetadata(folder / "server", env={**kept, **self._of("server")})
        self.server.key_file = data / "admin.key"
        for one in (self.gateway, self.server):
            one.program = program
            self._stack.callback(one.kill)
            one.start(ready_s_max=READY_S_MAX)
        self.pages = {
            "gateway": f"{self.gateway.url}/metrics",
            "backend": f"{backend.http}/metrics",
            "manager": f"{manager.http}/metrics",
            "server": f"{self.server.url}/metrics",
            "metadata": f"{metadata.http}/metrics",
        }

    def _of(self, name: str) -> dict[str, str]:
        own = {SPANS_FILE: str(self.folder / f"{name}.spans"), "PUSHQ_TRACING__SPANS": "true"}
        return {**own, **self._env.get("", {}), **self._env.get(name, {})}

    def scraped(self, role: str, accept: str = "") -> str:
        answer = httpx2.get(self.pages[role], headers={"Accept": accept} if accept else {}, trust_env=False)
        return answer.raise_for_status().text

    def log(self, role: str) -> str:
        return (self.folder / f"{role}.log").read_text(errors="replace")

    def spans(self, role: str) -> list[dict[str, Any]]:
        path = self.folder / f"{role}.spans"
        whole = path.read_text().rpartition("\n")[0] if path.exists() else ""
        return [json.loads(line) for line in whole.splitlines()]
