"""`pushq tenant …`: the customers of one server, each with queues and keys of its own."""

from __future__ import annotations

import click

from gateway.commands.asking import all_pages, ask
from gateway.commands.base import group, json_option, run, yes_option
from gateway.commands.output import confirm, put_items, put_json, put_table, tell
from gateway.commands.target import Target, target_options


@group("tenant")
def tenant() -> None:
    """Create, list and delete tenants.

    The key needs the scope operator.
    """


@tenant.command("create")
@click.argument("name", metavar="TENANT")
@target_options
@json_option
def create(name: str, target: Target, as_json: bool) -> None:
    """Create TENANT, or find it there."""
    made = run(ask(target, lambda admin: admin.put_tenant(name)))
    if as_json:
        put_json(made)
    else:
        tell(f'tenant "{name}" is there; make its first key with: pushq key create NAME --tenant {name} --scope admin')


@tenant.command("list")
@target_options
@json_option
def list_(target: Target, as_json: bool) -> None:
    """List tenants."""
    items = run(ask(target, lambda admin: all_pages(admin.list_tenants)))
    if as_json:
        put_items(items)
    else:
        put_table(["name", "created at"], [[item["name"], item.get("created_at") or "–"] for item in items])


@tenant.command("delete")
@click.argument("name", metavar="TENANT")
@yes_option
@target_options
@json_option
def delete(name: str, is_sure: bool, target: Target, as_json: bool) -> None:
    """Delete TENANT, which must have nothing left."""
    confirm(f'Delete tenant "{name}"?', is_sure=is_sure)
    run(ask(target, lambda admin: admin.delete_tenant(name)))
    if as_json:
        put_json({"name": name, "deleted": True})
    else:
        tell(f'tenant "{name}" is deleted')
