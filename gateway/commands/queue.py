"""`pushq queue …`: lists queues, shows their settings and contents, and changes them."""

from __future__ import annotations

import json
from typing import Any

import click

from gateway.commands.asking import all_pages, ask
from gateway.commands.base import group, json_option, run, yes_option
from gateway.commands.cancel import cancel
from gateway.commands.names import queue_names
from gateway.commands.output import confirm, duration, put, put_fields, put_items, put_json, put_table, size, tell
from gateway.commands.peek import peek
from gateway.commands.purge import purge
from gateway.commands.redrive import redrive
from gateway.commands.target import Target, target_options
from web_console.wording import counted

_LAZY = {
    "create": "gateway.commands.queue_set:create",
    "update": "gateway.commands.queue_set:update",
    "export": "gateway.commands.queue_file:export",
    "import": "gateway.commands.queue_file:import_",
}
"""Built from the type of a config, whose import other commands need not wait for."""


@group("queue", lazy=_LAZY)
def queue() -> None:
    """Create, inspect, change and delete queues."""


@queue.command("list")
@target_options
@json_option
def list_(target: Target, as_json: bool) -> None:
    """List the queues the key may view."""
    items = run(ask(target, lambda admin: all_pages(admin.list_queues)))
    if as_json:
        put_items(items)
        return
    put_table(["name", "kind", "ready", "in flight", "oldest", "consumers", "bytes"], [_row(item) for item in items])
    if not items:
        tell("no queues")


@queue.command("show")
@click.argument("name", metavar="QUEUE", shell_complete=queue_names)
@target_options
@json_option
def show(name: str, target: Target, as_json: bool) -> None:
    """Show QUEUE: its config and exact stats."""
    found = run(ask(target, lambda admin: admin.get_queue(name)))
    if as_json:
        put_json(found)
        return
    lies = {"cluster": found["cluster"]} if "cluster" in found else {}
    put_fields({"name": found["name"], "owner": found.get("owner"), "created_at": found["created_at"], **lies})
    for part in ("stats", "config"):
        put(f"\n{part}")
        put_fields({f"  {field}": _shown(value) for field, value in found[part].items()})
    if "partitions" in found:
        _put_partitions(found["partitions"])


def _put_partitions(partitions: dict[str, Any]) -> None:
    """The contents by partition, for a queue with several partitions."""
    put("\npartitions")
    put_fields({f"  {field}": value for field, value in partitions.items() if field != "items"})
    put("")
    fields = ("partition", "state", "slots", "slots_arriving", "ready", "in_flight", "delayed", "dead")
    rows = [[*(row[field] for field in fields), size(row["bytes"])] for row in partitions["items"]]
    put_table([*(field.replace("_", " ") for field in fields), "bytes"], rows)


@queue.command("delete")
@click.argument("name", metavar="QUEUE", shell_complete=queue_names)
@click.option(
    "--move-to",
    metavar="QUEUE",
    shell_complete=queue_names,
    help="Move its messages to this queue; for 7 days, later publishes go there too.",
)
@click.option("--discard", is_flag=True, help="Discard its messages.")
@yes_option
@target_options
@json_option
def delete(name: str, move_to: str | None, discard: bool, is_sure: bool, target: Target, as_json: bool) -> None:
    """Delete QUEUE and either move or discard its messages.

    This uses the socket in the data folder, so on the server's machine it works whatever the server allows over HTTP.
    With --url or a context, or PUSHQ_URL if the folder has no socket, it uses HTTP, which requires the setting
    queues.allow_delete_over_http.
    """
    if (move_to is None) != discard:
        raise click.UsageError("choose one: --move-to QUEUE or --discard")
    deleted = run(_delete(name, move_to, is_sure, target))
    if as_json:
        put_json(deleted)
    elif move_to is None:
        held = deleted["discarded"]
        lost = "and its messages" if held is None else f"and {counted(held, 'message')}"
        tell(f'deleted queue "{name}" {lost}')
    else:
        tell(f'deleted queue "{name}"; its messages are in "{move_to}" or on their way there')


queue.add_command(purge)
queue.add_command(peek)
queue.add_command(cancel)
queue.add_command(redrive)


async def _delete(name: str, move_to: str | None, is_sure: bool, target: Target) -> dict[str, Any]:
    from push.client.errors import ApiError

    is_local = target.is_local
    async with target.local_admin() if is_local else target.admin() as admin:
        where = target.socket if is_local else target.base_url
        fate = "lost" if move_to is None else f'moved to "{move_to}"'
        if move_to is not None:
            await admin.get_queue(move_to)  # an absent one is told before anybody is asked
        try:
            stats = (await admin.get_queue(name))["stats"]
            holds = stats["ready"] + stats["in_flight"] + stats["delayed"] + stats["dead"]
            what = counted(holds, "message, which is", "messages, which are")
        except ApiError as error:
            if error.code != "unavailable" or move_to is not None:
                raise
            what = f"an unknown number of messages ({error.problem.detail}), which are"
        confirm(f'Delete queue "{name}" with {what} {fate}, at {where}?', is_sure=is_sure)
        return await admin.delete_queue(name, move_to=move_to, discard=move_to is None)


def _row(item: dict[str, Any]) -> list[object]:
    if (stats := item.get("stats")) is None:
        return [item["name"], item["config"]["kind"], "away", *["–"] * 4]
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


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
