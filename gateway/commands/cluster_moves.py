"""`pushq cluster move`, `split`, `moves`: moves a queue in use to another cluster or spreads it over several; lists
moves.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from gateway.commands.asking import ask
from gateway.commands.base import command, json_option, run
from gateway.commands.exits import Failure
from gateway.commands.figures import FigureRange
from gateway.commands.names import queue_names
from gateway.commands.output import put_items, put_json, put_table, tell
from gateway.commands.places import is_at, is_over, lies_in, listed
from gateway.commands.target import Target, target_options
from web_console.wording import counted, percent

if TYPE_CHECKING:
    from push.client import Admin

LOOK_S = 0.2
WAIT_S = 60
MOVES = "/v1/cluster/moves"


of_tenant = click.option(
    "--tenant", metavar="TENANT", help="The queue's tenant.  [default: the context's, else default]"
)
waits = click.option(
    "--wait",
    "wait_s",
    type=FigureRange(min=0, max=86_400),
    default=WAIT_S,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait until publishes go to the new cluster.",
)


@command("move")
@click.argument("queue", metavar="QUEUE", shell_complete=queue_names)
@click.option("--to", metavar="CLUSTER", help="Target cluster, as named by `pushq cluster status`.")
@of_tenant
@waits
@click.option("--give-up", is_flag=True, help="Cancel the move while it is `sealing`; stop spreading a split queue.")
@target_options
@json_option
def move(
    queue: str, to: str | None, tenant: str | None, wait_s: float, give_up: bool, target: Target, as_json: bool
) -> None:
    """Move QUEUE to another cluster while it is in use.

    Publishes wait for about 100 ms, then continue at the new cluster. The old cluster delivers its backlog, and its
    receipts stay valid; readers of a stream find its messages there until retention drops them. A queue that several
    clusters share is merged: its parts move one cluster at a time. You can run the command again: a move that has begun
    continues without it. `pushq cluster moves` shows its progress. The key needs the scope operator.
    """
    if (to is None) != give_up:
        raise click.UsageError("choose one: --to CLUSTER or --give-up")
    owner = target.tenant(tenant) or "default"
    if to is None:
        place = run(ask(target, lambda admin: _given_up(admin, owner, queue)))
        said = f'queue "{queue}" stays in {lies_in(place)}'
    else:
        place, said = run(ask(target, lambda admin: _moved(admin, owner, queue, to, wait_s)))
    if as_json:
        put_json(place)
    else:
        tell(said)


@command("split")
@click.argument("queue", metavar="QUEUE", shell_complete=queue_names)
@click.option(
    "--over",
    multiple=True,
    metavar="CLUSTER",
    help="A cluster to share the queue, as named by `pushq cluster status`. Repeatable.",
)
@of_tenant
@waits
@target_options
@json_option
def split(queue: str, over: Sequence[str], tenant: str | None, wait_s: float, target: Target, as_json: bool) -> None:
    """Split QUEUE evenly over several clusters while it is in use.

    Each cluster takes the publishes for its share of the keys, and a share of the messages without a key. Clusters that
    hold too much hand part of it to the others, one move at a time. You can run the command again, also with other
    clusters: a split that has begun continues without it. `pushq cluster move QUEUE --give-up` stops it where it is,
    and with --to merges the queue. `pushq cluster moves` shows its progress. The key needs the scope operator.
    """
    clusters = list(dict.fromkeys(over))
    if len(clusters) < 2:
        raise click.UsageError("name at least two clusters to share the queue: --over CLUSTER")
    owner = target.tenant(tenant) or "default"
    place, said = run(ask(target, lambda admin: _spread(admin, owner, queue, clusters, wait_s)))
    if as_json:
        put_json(place)
    else:
        tell(said)


@command("moves")
@target_options
@json_option
def moves(target: Target, as_json: bool) -> None:
    """Show which queues are moving from one cluster to another.

    sealing: the old cluster is about to stop taking publishes, and the move can still be cancelled. draining: publishes
    go to the new cluster, and the old one delivers its backlog, or its messages are read until retention drops them.
    remembering: the old cluster holds only the ids it needs for deduplication. share: the part of the queue that moves.
    Finished moves are not listed. The key needs the scope operator.
    """
    items = run(ask(target, lambda admin: admin.ask("GET", MOVES)))["items"]
    if as_json:
        put_items(items)
        return
    columns = ("tenant", "queue", "from", "to", "state", "since", "left", "share")
    put_table(columns, [[*(one[name] for name in columns[:-2]), _shown(one["left"]), _part(one)] for one in items])
    if not items:
        tell("no queue is moving")


def _shown(left: int | None) -> int | str:
    return "–" if left is None else left


def _part(move: dict[str, Any]) -> str:
    share = move.get("share", 1.0)  # a server of an earlier version does not say
    return "all" if share == 1 else percent(share)


async def place_of(admin: Admin, tenant: str, queue: str) -> dict[str, Any]:
    """The clusters of a queue, and its moves that are under way."""
    return await admin.ask("GET", f"/v1/cluster/queues/{quote(tenant, safe='')}/{quote(queue, safe='')}")


async def begin(admin: Admin, tenant: str, queue: str, to: str) -> None:
    """Starts to move a queue; a move there that is under way continues."""
    await admin.ask("POST", MOVES, json={"tenant": tenant, "queue": queue, "to": to})


async def spread(admin: Admin, tenant: str, queue: str, over: Sequence[str]) -> None:
    """Starts to spread a queue over several clusters; if that is under way it continues."""
    await admin.ask("POST", MOVES, json={"tenant": tenant, "queue": queue, "over": list(over)})


async def arrived(admin: Admin, tenant: str, queue: str, over: Sequence[str], wait_s: float) -> dict[str, Any]:
    """Waits until these clusters share the queue's publishes; returns its place. Raises `Failure` after `wait_s`."""
    deadline = time.monotonic() + wait_s
    while not is_over(place := await place_of(admin, tenant, queue), over):
        if time.monotonic() > deadline:
            goes_on = "the move continues: check `pushq cluster moves`, or cancel it with `move --give-up`"
            is_on_its_way = place["moves"] or place.get("goal")
            why = goes_on if is_on_its_way else "the move is no longer under way: it was cancelled"
            raise Failure(f'queue "{queue}" is not in {listed(over)} yet; it is in {lies_in(place)}', lines=[why])
        await asyncio.sleep(LOOK_S)
    return place


async def _moved(admin: Admin, tenant: str, queue: str, to: str, wait_s: float) -> tuple[dict[str, Any], str]:
    """Moves a queue. Returns its place, and a sentence for stderr."""
    if is_at(place := await place_of(admin, tenant, queue), to):
        return place, f'queue "{queue}" is already in {to}'
    await begin(admin, tenant, queue, to)
    if not wait_s:
        return await place_of(admin, tenant, queue), f'moving queue "{queue}" from {lies_in(place)} to {to}'
    place = await arrived(admin, tenant, queue, [to], wait_s)
    return place, _arrived(queue, place)


async def _spread(
    admin: Admin, tenant: str, queue: str, over: Sequence[str], wait_s: float
) -> tuple[dict[str, Any], str]:
    """Spreads a queue. Returns its place, and a sentence for stderr."""
    if is_over(place := await place_of(admin, tenant, queue), over):
        return place, f'queue "{queue}" is already in {lies_in(place)}'
    await spread(admin, tenant, queue, over)
    if not wait_s:
        said = f'splitting queue "{queue}" over {listed(over)}; it was in {lies_in(place)}'
        return await place_of(admin, tenant, queue), said
    place = await arrived(admin, tenant, queue, over, wait_s)
    return place, _arrived(queue, place)


def _arrived(queue: str, place: dict[str, Any]) -> str:
    left = [f"{one['from']} still has {_rest(one['left'])}" for one in place["moves"] if one["state"] == "draining"]
    return "; ".join([f'publishes to "{queue}" go to {lies_in(place)}', *left])


def _rest(left: int | None) -> str:
    return "earlier messages" if left is None else counted(left, "message")


async def _given_up(admin: Admin, tenant: str, queue: str) -> dict[str, Any]:
    await admin.request("DELETE", f"{MOVES}/{quote(tenant, safe='')}/{quote(queue, safe='')}")
    return await place_of(admin, tenant, queue)
