"""`pushq queue create` and `update`: a queue's settings, as options, JSON or a file."""

from __future__ import annotations

import json
from typing import Any

import click

from gateway.commands.asking import ask
from gateway.commands.base import command, json_option, run
from gateway.commands.names import queue_names
from gateway.commands.output import put_json, tell
from gateway.commands.queue_options import settings_options
from gateway.commands.target import Target, target_options


@command("create")
@click.argument("name", metavar="QUEUE")
@settings_options()
@target_options
@json_option
def create(name: str, config: dict[str, Any], target: Target, as_json: bool) -> None:
    """Create QUEUE. Succeeds if it already exists with the same config."""
    made = run(ask(target, lambda admin: admin.create_queue(name, config)))
    if as_json:
        put_json(made)
    else:
        tell(f'queue "{made["name"]}" exists, kind {made["config"]["kind"]}')


@command("update")
@click.argument("name", metavar="QUEUE", shell_complete=queue_names)
@settings_options(for_update=True)
@target_options
@json_option
def update(name: str, config: dict[str, Any], target: Target, as_json: bool) -> None:
    """Change settings of QUEUE while it is in use.

    Settings that define the queue's nature cannot change and have no option here.
    """
    if not config:
        raise click.UsageError("nothing to change: give a setting, such as --max-attempts 5")
    changed = run(ask(target, lambda admin: admin.update_queue(name, config)))
    if as_json:
        put_json(changed)
    else:
        tell(f'queue "{name}": ' + ", ".join(f"{field} = {_shown(changed['config'][field])}" for field in config))


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
