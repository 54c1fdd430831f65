"""`pushq key …`: API keys, their scopes and expiry. A key's secret is printed once, on stdout only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from gateway.commands.asking import all_pages, ask
from gateway.commands.base import group, json_option, run, yes_option
from gateway.commands.moments import DURATION
from gateway.commands.output import confirm, put, put_items, put_json, put_table, require_stdout, shown_once, tell
from gateway.commands.target import Target, target_options


@group("key")
def key() -> None:
    """Create, list, rotate and delete API keys."""


@key.command("create")
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    metavar="SCOPE",
    multiple=True,
    required=True,
    help="publish:P, consume:P, view:P, manage:P, admin or operator; P is a pattern in which * matches any run. "
    "Repeatable.",
)
@click.option("--tenant", help="Create the key for another tenant; requires the scope operator.")
@click.option(
    "--expires-at",
    metavar="TIME",
    help="Expiry time, RFC 3339. Without it, the key expires with the key that creates it, if that has an expiry.",
)
@target_options
@json_option
def create(
    name: str, scopes: Sequence[str], tenant: str | None, expires_at: str | None, target: Target, as_json: bool
) -> None:
    """Create a key named NAME. The key is shown only once."""
    require_stdout()
    made = run(
        ask(target, lambda admin: admin.create_key(name, scopes, tenant=target.tenant(tenant), expires_at=expires_at))
    )
    _put_secret(made, as_json, target, done="created")


@key.command("list")
@target_options
@json_option
def list_(target: Target, as_json: bool) -> None:
    """List keys, without their secrets."""
    items = run(ask(target, lambda admin: all_pages(admin.list_keys)))
    if as_json:
        put_items(items)
        return
    header = ["id", "name", "tenant", "scopes", "created at", "expires at", "last used at"]
    put_table(header, [_row(item) for item in items])


@key.command("rotate")
@click.argument("key_id", metavar="ID")
@click.option(
    "--grace",
    "--grace-ms",
    "grace_ms",
    type=DURATION,
    default=0,
    show_default=True,
    help="Grace period for the old secret: 500, 90s, 2h, 7d.",
)
@target_options
@json_option
def rotate(key_id: str, grace_ms: int, target: Target, as_json: bool) -> None:
    """Rotate the secret of key ID."""
    require_stdout()
    made = run(ask(target, lambda admin: admin.rotate_key(key_id, grace_ms=grace_ms)))
    _put_secret(made, as_json, target, done="rotated")


@key.command("delete")
@click.argument("key_id", metavar="ID")
@yes_option
@target_options
@json_option
def delete(key_id: str, is_sure: bool, target: Target, as_json: bool) -> None:
    """Delete key ID and disconnect its users."""
    confirm(f"Delete key {key_id}? Its users are disconnected.", is_sure=is_sure)
    run(ask(target, lambda admin: admin.delete_key(key_id)))
    if as_json:
        put_json({"id": key_id, "deleted": True})
    else:
        tell(f"deleted key {key_id}")


def _put_secret(made: dict[str, Any], as_json: bool, target: Target, *, done: str) -> None:
    id = made["id"]
    rotate, delete = target.command(f"key rotate {id}"), target.command(f"key delete {id}")
    hint = f"get a new secret with {rotate}, or delete the key with {delete}"
    with shown_once(f"key {id} was {done}", hint):
        if as_json:
            put_json(made)
            return
        put(made["key"])
    tell(f"key {made['id']}, scopes {' '.join(made.get('scopes') or ())}: save it now, it is not shown again")


def _row(item: dict[str, Any]) -> list[object]:
    scopes = " ".join(item["scopes"])
    times = (item["created_at"], item.get("expires_at") or "never", item.get("last_used_at") or "never")
    return [item["id"], item["name"], item["tenant"], scopes, *times]
