"""Access: tenants and API keys."""

from __future__ import annotations

from collections.abc import Set
from typing import Any, Final
from urllib.parse import urlencode

from web_console.tables import Button, Column, Kind, Table, cut
from web_console.visit import Visit

QUOTAS: Final = (
    "requests_per_s", "publish_messages_per_s", "publish_bytes_per_s", "connections", "subscriptions", "queues",
    "stored_bytes",
)  # fmt: skip
_COLUMNS: Final[tuple[tuple[str, Kind], ...]] = (
    ("Requests/s", "number"), ("Messages/s", "number"), ("Bytes/s", "bytes"), ("Connections", "number"),
    ("Subscriptions", "number"), ("Queues", "number"), ("Stored", "bytes"),
)  # fmt: skip


async def load_tenants(visit: Visit) -> dict[str, Any]:
    tenants = await visit.every("/v1/tenants", 10_000)
    rows = [{**one, **one["quotas"], "href": f"{visit.path}?{urlencode({'edit': one['name']})}"} for one in tenants]
    table = Table(
        "Tenants and quotas",
        (
            Column("name", "Tenant", link="href", is_sortable=True),
            *(
                Column(name, label, kind, is_sortable=True)
                for name, (label, kind) in zip(QUOTAS, _COLUMNS, strict=True)
            ),
            Column("created_at", "Made", "time", is_sortable=True),
        ),
        rows,
        "No tenants yet. Tenants are listed here with their quotas.",
        path=visit.path,
        query=dict(visit.query),
    )
    edited, etag = await _edited(visit, {one["name"] for one in tenants})
    return {"table": cut(table, visit.query, default="name"), "edited": edited, "etag": etag, "quotas": QUOTAS}


async def _edited(visit: Visit, names: Set[str]) -> tuple[dict[str, Any] | None, str]:
    """The tenant to be changed, and its ETag."""
    wanted = visit.query.get("edit")
    if wanted not in names:
        return None, ""
    found = await visit.ask("GET", f"/v1/tenants/{wanted}")
    return found.json(), found.headers["etag"]


async def load_keys(visit: Visit) -> dict[str, Any]:
    rows = [_key_row(one) for one in await visit.every("/v1/keys", 10_000)]
    table = Table(
        "API keys",
        (
            Column("name", "Key", is_sortable=True),
            Column("tenant", "Tenant", is_sortable=True),
            Column("scopes_text", "Scopes", "code"),
            Column("last_used_at", "Last used", "time", is_sortable=True),
            Column("expires_at", "Expires", "time", is_sortable=True),
            Column("id", "Id", "code"),
        ),
        rows,
        "No keys yet. API keys are listed here with their scopes and last use.",
        path=visit.path,
        query=dict(visit.query),
        has_buttons=visit.may_do("revoke key"),
    )
    return {"table": cut(table, visit.query, default="name")}


def _key_row(one: dict[str, Any]) -> dict[str, Any]:
    rotate = Button(
        "rotate-key",
        "Rotate",
        {"item": one["id"]},
        f"Gives {one['name']!r} a new secret, shown only once. The old secret keeps working for the time below.",
        inputs=(("grace_ms", "Old secret keeps working for (90s, 15m, 2h)", "1h"),),
    )
    revoke = Button(
        "revoke-key",
        "Revoke",
        {"item": one["id"]},
        f"Ends the key {one['name']!r} and all connections and sessions opened with it. This cannot be undone.",
        is_danger=True,
        word=one["id"],
    )
    return {**one, "scopes_text": " ".join(one["scopes"]), "buttons": [rotate, revoke]}
