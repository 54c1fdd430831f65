"""`pushq dev-cluster` as people run it: each command a process of its own, in a folder of the test."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gateway.dev_cluster.state import State, load, save
from tests.support.environment import without_settings

COMMAND_S_MAX = 240.0
_ROOT = Path(__file__).resolve().parents[2]


class DevCluster:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, *arguments: str) -> Any:
        """What a command says that must end well."""
        ran = self.run(*arguments, "--json")
        assert ran.returncode == 0, ran.stderr
        return json.loads(ran.stdout)

    def run(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.argv(*arguments),
            cwd=_ROOT,
            env=without_settings(),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=COMMAND_S_MAX,
            check=False,
        )

    def argv(self, *arguments: str) -> Sequence[str]:
        return [sys.executable, "-m", "gateway", "dev-cluster", *arguments, "--directory", str(self.folder)]

    def part(self, name: str) -> Any:
        [found] = [part for part in self("status")["parts"] if part["name"] == name]
        return found

    def names(self, cluster: str) -> list[str]:
        """Its backends, the dead ones too."""
        return [part["name"] for part in self("status")["parts"] if part["cluster"] == cluster]

    @property
    def state(self) -> State:
        found = load(self.folder)
        assert found is not None, f"no cluster was started in {self.folder}"
        return found

    def change(self, name: str, change: Callable[[dict[str, str]], object]) -> None:
        """The settings of a part, which counts when that is started again."""
        state = self.state
        [part] = [part for part in state.parts if part.name == name]
        change(part.env)
        save(self.folder, state)
