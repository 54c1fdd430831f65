"""`pushq tenant …`: the tenants of a server, each with its own queues and keys."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import click

from gateway.commands.asking import all_pages, ask
from gateway.commands.base import group, json_option, run, yes_option
from gateway.commands.exits import Failure
from gateway.commands.figures import WholeRange
from gateway.commands.output import confirm, put_items, put_json, put_table, tell
from gateway.commands.target import Target, target_options

if TYPE_CHECKING:
    from push.client import Admin
    from push.client.api import JsonObject


@group("tenant")
def tenant() -> None:
    """Create, list, limit and delete tenants.

    The key needs the scope operator.
    """


CHANGE_TRIES_MAX: Final = 5
QUOTAS: Final = {
    "requests_per_s": "Requests per second.",
    "publish_messages_per_s": "Messages published per second.",
    "publish_bytes_per_s": "Bytes published per second.",
    "connections": "Open connections.",
    "subscriptions": "Open subscriptions.",
    "queues": "Queues.",
    "stored_bytes": "Bytes on disk, over all queues.",
}


def quota_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds an option for each quota."""
    for quota, text in reversed(QUOTAS.items()):
        command = click.option(f"--{quota.replace('_', '-')}", quota, type=WholeRange(min=1), help=text)(command)
    return command


@tenant.command("create")
@click.argument("name", metavar="TENANT")
@quota_options
@target_options
@json_option
def create(name: str, target: Target, as_json: bool, **quotas: int | None) -> None:
    """Create TENANT. Succeeds if it already exists with these quotas."""
    given = {quota: value for quota, value in quotas.items() if value is not None}
    made = run(ask(target, lambda admin: _made(admin, name, given)))
    if as_json:
        put_json(made)
    else:
        following = target.command(f"key create NAME --tenant {name} --scope admin")
        tell(f'tenant "{name}" exists; create its first key with {following}')


async def _made(admin: Admin, name: str, quotas: Mapping[str, int]) -> JsonObject:
    """Quotas that a tenant has already are not replaced: whoever creates it does not see them."""
    from push.client import NotFound

    try:
        known = await admin.get_tenant(name)
    except NotFound:
        return await admin.put_tenant(name, quotas=quotas or None)
    if quotas and known["quotas"] != quotas:
        raise Failure(
            f'tenant "{name}" already exists with other quotas: {_told(known["quotas"])}',
            lines=[f"change them with pushq tenant update {name}"],
        )
    return known


@tenant.command("list")
@target_options
@json_option
def list_(target: Target, as_json: bool) -> None:
    """List tenants."""
    items = run(ask(target, lambda admin: all_pages(admin.list_tenants)))
    if as_json:
        put_items(items)
    else:
        put_table(["name", "created at", "quotas"], [_row(item) for item in items])


@tenant.command("show")
@click.argument("name", metavar="TENANT")
@target_options
@json_option
def show(name: str, target: Target, as_json: bool) -> None:
    """Show TENANT and its quotas."""
    found = run(ask(target, lambda admin: admin.get_tenant(name)))
    if as_json:
        put_json(found)
    else:
        put_table(["name", "created at", "quotas"], [_row(found)])


@tenant.command("update")
@click.argument("name", metavar="TENANT")
@quota_options
@click.option("--no-quota", "dropped", metavar="QUOTA", type=click.Choice(QUOTAS), multiple=True, help="Repeats.")
@target_options
@json_option
def update(name: str, dropped: Sequence[str], target: Target, as_json: bool, **quotas: int | None) -> None:
    """Change quotas of TENANT; unnamed ones stay as they are."""
    given = {quota: value for quota, value in quotas.items() if value is not None}
    if not given and not dropped:
        raise click.UsageError("give a quota to set, or one to remove with --no-quota")
    changed = run(ask(target, lambda admin: change_quotas(admin, name, given=given, dropped=dropped)))
    if as_json:
        put_json(changed)
    else:
        tell(f'tenant "{name}": {_told(changed["quotas"])}')


async def change_quotas(admin: Admin, name: str, *, given: Mapping[str, int], dropped: Collection[str]) -> JsonObject:
    """Sets the `given` quotas, removes the `dropped` ones and keeps the others. Returns the tenant.

    Another operator's change in the meantime is kept: the quotas are read and set again. Raises `ApiError`
    (`precondition-failed`) if that happens each time.
    """
    from push.client import ApiError

    for tries_left in reversed(range(CHANGE_TRIES_MAX)):
        known, etag = await admin.get_tenant_etag(name)
        kept = {quota: value for quota, value in known["quotas"].items() if quota not in dropped}
        try:
            return await admin.put_tenant(name, quotas=kept | dict(given), etag=etag)
        except ApiError as error:
            if error.code != "precondition-failed" or not tries_left:
                raise
    raise AssertionError("the last try returns or raises")


def _row(item: JsonObject) -> list[object]:
    return [item["name"], item.get("created_at") or "–", _told(item["quotas"])]


def _told(quotas: Mapping[str, int]) -> str:
    return ", ".join(f"{quota} {value}" for quota, value in quotas.items()) or "no quotas"


@tenant.command("delete")
@click.argument("name", metavar="TENANT")
@yes_option
@target_options
@json_option
def delete(name: str, is_sure: bool, target: Target, as_json: bool) -> None:
    """Delete TENANT, which must be empty."""
    confirm(f'Delete tenant "{name}"?', is_sure=is_sure)
    run(ask(target, lambda admin: admin.delete_tenant(name)))
    if as_json:
        put_json({"name": name, "deleted": True})
    else:
        tell(f'deleted tenant "{name}"')
