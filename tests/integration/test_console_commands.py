"""Each view of the console names a command that there is."""

from __future__ import annotations

import shlex

import click

from gateway.cli import cli
from web_console.views import VIEWS


def _unknown(line: str) -> str | None:
    """The first word of a `pushq` line that is no command, or an option that its command does not have."""
    command: click.Command = cli
    for word in shlex.split(line)[1:]:
        if word.startswith("--"):
            known = {option for parameter in command.params for option in parameter.opts}
            if word not in known | {"--help"}:
                return word
        elif isinstance(command, click.Group):
            found = command.get_command(click.Context(command), word)
            if found is None:
                return word
            command = found
    return None


def test_every_view_names_a_command_that_there_is() -> None:
    lines = {view.name: view.cli for view in VIEWS}
    assert {name for name, line in lines.items() if not line.startswith("pushq ")} == set()
    assert {name: _unknown(line) for name, line in lines.items()} == dict.fromkeys(lines)
    assert _unknown("pushq queue look --json") == "look" and _unknown("pushq queue list --jsn") == "--jsn"
