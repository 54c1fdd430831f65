"""Open connections, and the button that ends one."""

from __future__ import annotations

from typing import Any

from web_console.tables import Button, Column, Table, cut
from web_console.visit import Visit


async def load(visit: Visit) -> dict[str, Any]:
    rows = [_row(one) for one in await visit.every("/v1/connections", 1000)]
    table = Table(
        "Connections",
        (
            Column("name", "Key", is_sortable=True),
            Column("transport", "Transport", "state", is_sortable=True),
            Column("address", "Address", "code", is_sortable=True),
            Column("reads", "Reads", "code"),
            Column("sent", "Sent", "number", is_sortable=True),
            Column("outbox_bytes", "Unread", "bytes", is_sortable=True),
            Column("connected_at", "Since", "time", is_sortable=True),
            Column("tenant", "Tenant", is_sortable=True),
            Column("id", "Id", "code"),
        ),
        rows,
        "No open connections. They are listed here with the queues they read.",
        path=visit.path,
        query=dict(visit.query),
        has_buttons=visit.may_do("disconnect"),
    )
    return {"table": cut(table, visit.query, default="-sent"), "about": "Open connections of this gateway."}


def _row(one: dict[str, Any]) -> dict[str, Any]:
    button = Button(
        "disconnect",
        "Disconnect",
        {"item": one["id"]},
        f"Ends connection {one['id']} of {one['name']!r} (close code 4003). Its leased messages return to their "
        "queues at once. The client can reconnect as long as its key is valid.",
        is_danger=True,
    )
    return {**one, "reads": ", ".join(each["queue"] for each in one["subscriptions"]) or None, "buttons": [button]}
