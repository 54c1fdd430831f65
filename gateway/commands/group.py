"""`pushq group …`: the consumer groups of a stream, their positions and their lag."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from gateway.commands.asking import ask
from gateway.commands.base import group as group_of_commands
from gateway.commands.base import json_option, run, yes_option
from gateway.commands.names import group_names, queue_names
from gateway.commands.output import confirm, put_items, put_json, put_table, tell
from gateway.commands.target import Target, target_options
from web_console.wording import counted

if TYPE_CHECKING:
    from push.client import Admin


@group_of_commands("group")
def group() -> None:
    """Manage the consumer groups of a stream."""


@group.command("list")
@click.argument("queue", metavar="STREAM", shell_complete=queue_names)
@target_options
@json_option
def list_(queue: str, target: Target, as_json: bool) -> None:
    """List the groups of STREAM, each with its position and its lag in messages."""
    items = run(ask(target, lambda admin: admin.list_groups(queue)))
    if as_json:
        put_items(items)
    elif not items:
        tell(f'"{queue}" has no groups')
    else:
        rows = [row for item in items for row in _rows(item)]
        put_table(["name", "mode", "partition", "position", "end", "lag"], rows)


@group.command("set")
@click.argument("queue", metavar="STREAM", shell_complete=queue_names)
@click.argument("name", metavar="GROUP", shell_complete=group_names)
@click.option(
    "--position", metavar="WHERE", help="earliest, latest, seq:N or time:T.  [default: latest for a new group]"
)
@click.option("--mode", type=click.Choice(["offsets", "leases"]), help="The mode of a new group.  [default: offsets]")
@yes_option
@target_options
@json_option
def set_(
    queue: str, name: str, position: str | None, mode: str | None, is_sure: bool, target: Target, as_json: bool
) -> None:
    """Create GROUP, or move it: its consumers lose their leases and continue from the new position."""
    where = parse_position(position)
    found = run(ask(target, lambda admin: _set(admin, queue, name, where, mode, is_sure=is_sure)))
    if as_json:
        put_json(found)
        return
    lag = sum(part["lag"] for part in found["lag"])
    tell(f'group "{name}" of "{queue}" is at {found["position"]["seq"]}, {counted(lag, "message")} behind')


@group.command("delete")
@click.argument("queue", metavar="STREAM", shell_complete=queue_names)
@click.argument("name", metavar="GROUP", shell_complete=group_names)
@yes_option
@target_options
@json_option
def delete(queue: str, name: str, is_sure: bool, target: Target, as_json: bool) -> None:
    """Delete GROUP and its position; STREAM keeps its messages."""
    confirm(f'Delete group "{name}" of "{queue}" and its position?', is_sure=is_sure)
    run(ask(target, lambda admin: admin.delete_group(queue, name)))
    if as_json:
        put_json({"name": name, "deleted": True})
    else:
        tell(f'deleted group "{name}" of "{queue}"')


async def _set(admin: Admin, queue: str, name: str, where: Any, mode: Any, *, is_sure: bool) -> dict[str, Any]:
    known = any(item["name"] == name for item in await admin.list_groups(queue))
    if known and where is not None:
        confirm(f'Move group "{name}" of "{queue}"? Its consumers lose their leases.', is_sure=is_sure)
    return await admin.put_group(queue, name, position=where, mode=mode)


def parse_position(text: str | None) -> Any:
    """Converts `earliest`, `latest`, `seq:42`, `time:…` to the API's form."""
    if text is None or text in ("earliest", "latest"):
        return text
    name, colon, value = text.partition(":")
    if name not in ("seq", "time") or not colon or (name == "seq" and not re.fullmatch("[0-9]{1,19}", value)):
        raise click.BadParameter(
            f"invalid position {text!r}: use earliest, latest, seq:N or time:T", param_hint="--position"
        )
    return {name: int(value) if name == "seq" else value}


def _rows(item: dict[str, Any]) -> list[list[object]]:
    return [
        [item["name"], item["mode"], part["partition"], part["position"], part["end"], part["lag"]]
        for part in item["lag"]
    ]
