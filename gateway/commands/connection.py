"""`pushq connection …`: lists open connections, and closes one."""

from __future__ import annotations

from typing import Any

import click

from gateway.commands.asking import all_pages, ask
from gateway.commands.base import group, json_option, run
from gateway.commands.output import put_items, put_json, put_table, tell
from gateway.commands.target import Target, target_options


@group("connection")
def connection() -> None:
    """List and end open connections.

    The key needs the scope admin for its own tenant, and operator for all.
    """


@connection.command("list")
@target_options
@json_option
def list_(target: Target, as_json: bool) -> None:
    """List connections and what they consume."""
    items = run(ask(target, lambda admin: all_pages(admin.list_connections)))
    if as_json:
        put_items(items)
        return
    header = ["id", "tenant", "caller", "transport", "connected at", "address", "sent", "outbox bytes", "reads"]
    put_table(header, [_row(item) for item in items])


@connection.command("kick")
@click.argument("connection_id", metavar="ID")
@target_options
@json_option
def kick(connection_id: str, target: Target, as_json: bool) -> None:
    """Close connection ID and release what it holds immediately."""
    run(ask(target, lambda admin: admin.kick_connection(connection_id)))
    if as_json:
        put_json({"id": connection_id, "kicked": True})
    else:
        tell(f"closed connection {connection_id}; a client with a valid key may reconnect")


def _row(item: dict[str, Any]) -> list[object]:
    reads = [each["queue"] + (f" ({each['group']})" if each.get("group") else "") for each in item["subscriptions"]]
    facts = (item[name] for name in ("id", "tenant", "name", "transport", "connected_at"))
    return [*facts, item["address"] or "–", item["sent"], item["outbox_bytes"], " ".join(reads) or "–"]
