"""`pushq dev-cluster` as users run it: each command is a process of its own, in the test's folder.

A command is forked from a process that has already imported it, see `forked`; the processes it starts are fresh
interpreters.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gateway.dev_cluster.running import leaders
from gateway.dev_cluster.state import Part, State, load, save
from tests.support.cli import Ran, run
from tests.support.environment import without_settings

COMMAND_S_MAX = 240.0


class DevCluster:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, *arguments: str) -> Any:
        """The JSON output of a command that must succeed."""
        ran = self.run(*arguments, "--json")
        assert ran.code == 0, ran.err
        return ran.json()

    def run(self, *arguments: str, stdin: str = "") -> Ran:
        command = ["dev-cluster", *arguments, "--directory", str(self.folder)]
        return run(*command, env=without_settings(), stdin=stdin, within_s=COMMAND_S_MAX)

    def part(self, name: str) -> Part:
        [found] = [part for part in self.state.parts if part.name == name]
        return found

    def pid(self, name: str) -> int:
        pid = self.part(name).pid
        assert pid is not None, f"{name} was never started"
        return pid

    def names(self, cluster: str) -> list[str]:
        """Its backends, including dead ones."""
        return [part.name for part in self.state.backends_of(cluster)]

    def leaders(self) -> list[dict[str, Any]]:
        """The leaders shown by `status`."""
        return leaders(self.state)

    @property
    def state(self) -> State:
        found = load(self.folder)
        assert found is not None, f"no cluster was started in {self.folder}"
        return found

    def change(self, name: str, change: Callable[[dict[str, str]], object]) -> None:
        """Changes the settings of a part, effective when it is restarted."""
        state = self.state
        [part] = [part for part in state.parts if part.name == name]
        change(part.env)
        save(self.folder, state)
