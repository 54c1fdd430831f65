"""Runs the command line of a deploy file unchanged, with this tree's `pushq` and a folder of the test."""

from __future__ import annotations

import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.environment import SMALL_FOLDERS, without_settings
from tests.support.forked import Forked
from tests.support.patience import PATIENCE_S, until

READY_S_MAX = PATIENCE_S
STOP_S_MAX = PATIENCE_S
ROOT = Path(__file__).resolve().parents[2]


class Running:
    """One `pushq …`, started with the arguments from a file. It ends with the `with` block."""

    def __init__(self, arguments: Sequence[str], folder: Path, env: Mapping[str, str] | None = None) -> None:
        """`arguments`: those after `pushq`."""
        self._command = ["gateway", *arguments]
        self._env = dict(env or {})
        self._folder = folder
        self._log = folder / "running.log"
        self._process: Forked | None = None

    def __enter__(self) -> Self:
        clean = without_settings() | SMALL_FOLDERS
        with self._log.open("ab") as log:
            self._process = Forked(
                self._command,
                cwd=self._folder,
                env=clean | {"PYTHONPATH": str(ROOT)} | self._env,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_S_MAX)

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def wait_for(self, url: str) -> None:
        """Waits until `url` answers 200."""
        process = self._process
        assert process is not None
        until(lambda: process.poll() is not None or status(url) == 200, self.log, within_s=READY_S_MAX)
        assert process.poll() is None, self.log()

    def wait_for_word(self, word: str) -> None:
        """Waits until its output contains the word."""
        until(lambda: word in self.log(), self.log, within_s=READY_S_MAX)

    def stop(self) -> int:
        """Sends SIGTERM, and returns the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(STOP_S_MAX)
        self._process = None
        return code


def status(url: str) -> int:
    """The status of `url`; 0 if there is no response."""
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0
