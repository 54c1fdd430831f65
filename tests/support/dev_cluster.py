"""`pushq dev-cluster` as people run it: each command a process of its own, in a folder of the test.

A command is the fork of a process that has imported it, see `forked`; what it starts are interpreters of their own.
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
        """What a command says that must end well."""
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
        """Its backends, the dead ones too."""
        return [part.name for part in self.state.backends_of(cluster)]

    def leaders(self) -> list[dict[str, Any]]:
        """As `status` shows them."""
        return leaders(self.state)

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
