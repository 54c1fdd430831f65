"""Three backend processes with certificates over a real etcd, which tests kill, stop and restart."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.backend_main import SOCKET
from tests.support.etcd import Etcd
from tests.support.forked import Forked
from tests.support.patience import until
from tests.support.server import free_port
from tests.support.tls import Authority

WAIT_S = 60.0
PROGRAM = ("tests.support.backend_main",)
"""A backend that answers a test's questions about its rows."""
ROLE = ("gateway", "backend")
"""The plain `pushq backend`."""
_ROOT = Path(__file__).resolve().parents[2]


class Backend:
    def __init__(
        self,
        name: str,
        folder: Path,
        authority: Authority,
        etcd: str,
        program: Sequence[str] = PROGRAM,
        shards: int = 1,
        env: Mapping[str, str] | None = None,
    ):
        self.name = name
        self._program = program
        self.data = folder / name
        pair = authority.issue(name)
        self.service = f"127.0.0.1:{free_port()}"
        self._log = folder / f"{name}.log"
        self._env = {
            **{key: value for key, value in os.environ.items() if not key.startswith("PUSHQ_")},
            "PUSHQ_DATA": str(self.data),
            "PUSHQ_NODE__NAME": name,
            "PUSHQ_NODE__ZONE": f"zone-{name}",
            "PUSHQ_NODE__LISTEN": "127.0.0.1:0",
            "PUSHQ_NODE__HTTP": "127.0.0.1:0",
            "PUSHQ_NODE__SERVICE": self.service,
            "PUSHQ_NODE__TLS_CERT": str(pair.certificate),
            "PUSHQ_NODE__TLS_KEY": str(pair.key),
            "PUSHQ_NODE__TLS_CA": str(authority.certificate),
            "PUSHQ_CLUSTER__COORDINATOR": "etcd://" + etcd.partition("://")[2] if "://" in etcd else etcd,
            "PUSHQ_CLUSTER__SHARDS": str(shards),
            "PUSHQ_CLUSTER__ASYNC_SHARDS": "0",
            **(env or {}),
        }
        self._process: Forked | None = None
        self.http = ""

    def start(self) -> None:
        self.begin()
        self.wait_ready()

    def begin(self) -> None:
        with self._log.open("ab") as log:
            self._process = Forked(
                self._program,
                env=self._env,
                cwd=_ROOT,
                stdout=subprocess.PIPE,
                stderr=log,
            )

    def wait_ready(self) -> None:
        process = self._process
        assert process is not None and process.stdout is not None
        for line in process.stdout:
            if line.startswith("  health"):
                self.http = line.split()[1].removesuffix("/health")
            if line == "ready\n":
                return
        raise AssertionError(f"{self.name} did not start: {self._log.read_text()[-2000:]}")

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def end(self, number: signal.Signals = signal.SIGKILL) -> int:
        """Returns its exit code."""
        process, self._process = self._process, None
        assert process is not None and process.stdout is not None
        process.send_signal(signal.SIGCONT)
        process.send_signal(number)
        process.stdout.close()
        return process.wait(timeout=60)

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def ask(self, line: str, *, within_s: float = 5.0) -> str:
        """Returns the answer, or "" if nobody answers."""
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(within_s)
            asking.connect(str(self.data / SOCKET))
            asking.sendall(f"{line}\n".encode())
            with asking.makefile() as answers:
                return answers.readline().strip()
        return ""

    def rows(self) -> dict[str, str]:
        found: dict[str, str] = json.loads(self.ask("rows") or "{}")
        return found

    def health(self) -> dict[str, Any]:
        """Returns {} if it does not answer."""
        try:
            with urllib.request.urlopen(f"{self.http}/health", timeout=2) as answer:
                found: dict[str, Any] = json.load(answer)
        except (OSError, urllib.error.HTTPError):
            return {}
        return found


class Backends:
    def __init__(
        self,
        folder: Path,
        program: Sequence[str] = PROGRAM,
        *,
        shards: int = 1,
        names: str = "abc",
        env: Mapping[str, str] | None = None,
        beside: Backends | None = None,
    ):
        """`names`: one letter per backend. `env`: settings of all backends. `beside`: another cluster with other names,
        whose etcd and authority this one shares."""
        self._folder = folder
        self._names = names
        self._env = env
        self._program = program
        self._shards = shards
        self.authority: Authority = Authority(folder / "ca") if beside is None else beside.authority
        self._etcd: Etcd = Etcd(folder) if beside is None else beside._etcd
        self._is_host = beside is None
        self._namespace = "" if beside is None else f"/{names}"
        self.all: list[Backend] = []
        self.confirmed: dict[str, str] = {}
        self._number = 0

    def __enter__(self) -> Self:
        if self._is_host:
            self._etcd.__enter__()
        try:
            self.all = [self._backend(name) for name in self._names]
            for one in self.all:
                one.begin()
            for one in self.all:
                one.wait_ready()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _backend(self, name: str) -> Backend:
        etcd = self._etcd.endpoints[0] + self._namespace
        return Backend(name, self._folder, self.authority, etcd, self._program, self._shards, self._env)

    def join(self, name: str) -> Backend:
        """Adds a backend, and returns it once it is ready."""
        one = self._backend(name)
        self.all.append(one)
        one.start()
        return one

    def __getitem__(self, name: str) -> Backend:
        return next(one for one in self.all if one.name == name)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for one in self.all:
            if one.is_running:
                one.end()
        if self._is_host:
            self._etcd.__exit__(kind, error, tb)

    @property
    def coordinator(self) -> str:
        """The value of the setting cluster.coordinator."""
        return self._etcd.endpoints[0].replace("http", "etcd", 1) + self._namespace

    def gateway_env(self, name: str) -> dict[str, str]:
        """Settings of a gateway that stores its messages here, with a certificate for `name`."""
        pair = self.authority.issue(name)
        return {
            "PUSHQ_STORE__BACKENDS": ",".join(one.service for one in self.all),
            "PUSHQ_STORE__TLS_CERT": str(pair.certificate),
            "PUSHQ_STORE__TLS_KEY": str(pair.key),
            "PUSHQ_STORE__TLS_CA": str(self.authority.certificate),
        }

    def stop_coordinator(self) -> None:
        self._etcd.kill()

    def write(self, *, besides: Backend | None = None, within_s: float = WAIT_S) -> Backend:
        """Writes one row, asking each backend in turn until one confirms it; returns that backend."""
        self._number += 1
        key, value = f"{self._number:05}", f"of-{self._number}"
        found: list[Backend] = []

        def is_confirmed() -> bool:
            for one in self.all:
                if one is not besides and one.is_running and one.ask(f"put {key} {value}", within_s=15) == "ok":
                    found.append(one)
                    return True
            return False

        until(is_confirmed, "a row is confirmed", within_s=within_s)
        self.confirmed[key] = value
        return found[0]

    def all_in_sync(self) -> None:
        """Waits until every shard is in sync, or every lane in a cluster of independent hosts."""
        expected = int((self._env or {}).get("PUSHQ_CLUSTER__LANES", self._shards))

        def is_so() -> bool:
            found = [one.health().get("shards", []) for one in self.all]
            return all(
                len(shards) == expected and all(len(shard["in_sync"]) == len(self.all) for shard in shards)
                for shards in found
            )

        until(is_so, "all are in sync")

    def all_have_what_is_confirmed(self) -> None:
        """Waits until all backends have every confirmed row, and the same rows, unconfirmed ones included."""
        until(lambda: all(self.confirmed.items() <= one.rows().items() for one in self.all), "all have all")
        until(lambda: len({json.dumps(one.rows()) for one in self.all}) == 1, "all have the same")
