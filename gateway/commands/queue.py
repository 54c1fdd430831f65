"""`pushq queue …`: what queues there are, how they are set, and what lies in them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from gateway.commands.asking import all_pages, ask
from gateway.commands.base import group, json_option, run, yes_option
from gateway.commands.output import confirm, duration, put, put_fields, put_items, put_json, put_table, size, tell
from gateway.commands.peek import peek
from gateway.commands.purge import purge
from gateway.commands.target import Target, target_options


@group("queue")
def queue() -> None:
    """Create, look at, change and delete queues."""


_SET = click.option(
    "--set", "settings", metavar="FIELD=VALUE", multiple=True, help="A config field; VALUE is JSON, else text. Repeats."
)
_CONFIG_FILE = click.option(
    "--config-file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A JSON file of config fields."
)


@queue.command("create")
@click.argument("name", metavar="QUEUE")
@click.option("--kind", type=click.Choice(["work", "stream"]), help="Each message to one consumer, or kept for all.")
@click.option("--visibility-timeout-ms", type=int, help="How long a delivered message waits for its ack.")
@_SET
@_CONFIG_FILE
@target_options
@json_option
def create(
    name: str,
    kind: str | None,
    visibility_timeout_ms: int | None,
    settings: Sequence[str],
    config_file: Path | None,
    target: Target,
    as_json: bool,
) -> None:
    """Create QUEUE, or find it there with the same config."""
    config = _config(settings, config_file)
    config |= {"kind": kind} if kind else {}
    config |= {"visibility_timeout_ms": visibility_timeout_ms} if visibility_timeout_ms is not None else {}
    made = run(ask(target, lambda admin: admin.create_queue(name, config)))
    if as_json:
        put_json(made)
    else:
        tell(f'queue "{made["name"]}" is there, kind {made["config"]["kind"]}')


@queue.command("list")
@target_options
@json_option
def list_(target: Target, as_json: bool) -> None:
    """List the queues that the key may view."""
    items = run(ask(target, lambda admin: all_pages(admin.list_queues)))
    if as_json:
        put_items(items)
    elif not items:
        tell("no queues")
    else:
        put_table(
            ["name", "kind", "ready", "in flight", "oldest", "consumers", "bytes"], [_row(item) for item in items]
        )


@queue.command("show")
@click.argument("name", metavar="QUEUE")
@target_options
@json_option
def show(name: str, target: Target, as_json: bool) -> None:
    """Show QUEUE: its config and its exact numbers."""
    found = run(ask(target, lambda admin: admin.get_queue(name)))
    if as_json:
        put_json(found)
        return
    put_fields({"name": found["name"], "owner": found.get("owner"), "created_at": found["created_at"]})
    for part in ("stats", "config"):
        put(f"\n{part}")
        put_fields({f"  {field}": _shown(value) for field, value in found[part].items()})


@queue.command("update")
@click.argument("name", metavar="QUEUE")
@_SET
@_CONFIG_FILE
@target_options
@json_option
def update(name: str, settings: Sequence[str], config_file: Path | None, target: Target, as_json: bool) -> None:
    """Change config fields of QUEUE."""
    changes = _config(settings, config_file)
    if not changes:
        raise click.UsageError("nothing to change: name fields with --set or --config-file")
    changed = run(ask(target, lambda admin: admin.update_queue(name, changes)))
    if as_json:
        put_json(changed)
    else:
        tell(f'queue "{name}": ' + ", ".join(f"{field} = {_shown(changed['config'][field])}" for field in changes))


@queue.command("delete")
@click.argument("name", metavar="QUEUE")
@click.option("--discard", is_flag=True, required=True, help="Its messages are discarded: say so.")
@yes_option
@target_options
@json_option
def delete(name: str, discard: bool, is_sure: bool, target: Target, as_json: bool) -> None:
    """Delete QUEUE with everything in it.

    This goes over the socket in the data folder, so it works on the server's machine whatever the server allows over
    HTTP. With --url it goes over HTTP, which the setting queues.allow_delete_over_http must permit.
    """
    deleted = run(_delete(name, is_sure, target))
    if as_json:
        put_json(deleted)
    else:
        tell(f'queue "{name}" is deleted, {deleted["discarded"]} messages with it')


queue.add_command(purge)
queue.add_command(peek)


async def _delete(name: str, is_sure: bool, target: Target) -> dict[str, Any]:
    is_local = target.url is None
    async with target.local_admin() if is_local else target.admin() as admin:
        found = await admin.get_queue(name)
        stats = found["stats"]
        holds = stats["ready"] + stats["in_flight"] + stats["delayed"]
        where = target.socket if is_local else target.base_url
        confirm(f'Delete queue "{name}" with {holds} messages, at {where}?', is_sure=is_sure)
        return await admin.delete_queue(name, discard=True)


def _row(item: dict[str, Any]) -> list[object]:
    stats = item["stats"]
    oldest = duration(stats["oldest_age_ms"]) if stats["ready"] or stats["in_flight"] else "–"
    return [
        item["name"],
        item["config"]["kind"],
        stats["ready"],
        stats["in_flight"],
        oldest,
        stats["consumers"],
        size(stats["bytes"]),
    ]


def _config(settings: Sequence[str], config_file: Path | None) -> dict[str, Any]:
    """The fields of the file, then those of `--set`, which win."""
    config = _from_file(config_file) if config_file is not None else {}
    for setting in settings:
        field, equals, text = setting.partition("=")
        if not equals or not field:
            raise click.BadParameter(f"{setting!r} is not FIELD=VALUE", param_hint="--set")
        try:
            config[field] = json.loads(text)
        except ValueError:
            config[field] = text
    return config


def _from_file(config_file: Path) -> dict[str, Any]:
    try:
        fields = json.loads(config_file.read_text())
    except ValueError as error:
        raise click.BadParameter(f"{config_file} is not JSON: {error}", param_hint="--config-file") from None
    if not isinstance(fields, dict):
        raise click.BadParameter(f"{config_file} holds no JSON object", param_hint="--config-file")
    return fields


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
