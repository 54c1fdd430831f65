"""`pushq manager` as a separate process."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx2

from tests.support.environment import without_settings
from tests.support.forked import Forked

_ROOT = Path(__file__).resolve().parents[2]


class Manager:
    """One `pushq manager` process."""

    def __init__(self, name: str, folder: Path, env: Mapping[str, str]) -> None:
        self.name = name
        settings = {"PUSHQ_MANAGER__NAME": name, "PUSHQ_MANAGER__LISTEN": "127.0.0.1:0", "PUSHQ_MANAGER__LOOK_S": "1"}
        self._env = {**without_settings(), **env, **settings}
        self._folder = folder
        self.http = ""

    def __enter__(self) -> Self:
        with (self._folder / f"{self.name}.log").open("ab") as log:
            self._process = Forked(("gateway", "manager"), env=self._env, cwd=_ROOT, stdout=subprocess.PIPE, stderr=log)
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("  health"):
                self.http = line.split()[1].removesuffix("/health")
            if line == "ready\n":
                return self
        raise AssertionError(f"{self.name} did not start: {self.log}")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._process.returncode is None:
            self.end(signal.SIGKILL)

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self, number: signal.Signals) -> int:
        assert self._process.stdout is not None
        self.send(number)
        self._process.stdout.close()
        return self._process.wait(timeout=60)

    @property
    def log(self) -> str:
        return (self._folder / f"{self.name}.log").read_text(errors="replace")

    def page(self, path: str) -> str:
        return httpx2.get(f"{self.http}{path}", trust_env=False).text
