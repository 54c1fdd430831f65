"""`pushq cluster move`, `moves`: a queue goes to another cluster while it is in use; which ones are on their way."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from gateway.commands.asking import ask
from gateway.commands.base import command, json_option, run
from gateway.commands.exits import Failure
from gateway.commands.figures import FigureRange
from gateway.commands.names import queue_names
from gateway.commands.output import put_items, put_json, put_table, tell
from gateway.commands.places import is_at, lies_in
from gateway.commands.target import Target, target_options
from web_console.wording import counted

if TYPE_CHECKING:
    from push.client import Admin

LOOK_S = 0.2
WAIT_S = 60
MOVES = "/v1/cluster/moves"


@command("move")
@click.argument("queue", metavar="QUEUE", shell_complete=queue_names)
@click.option("--to", metavar="CLUSTER", help="Where it goes, as `pushq cluster status` names it.")
@click.option("--tenant", metavar="TENANT", help="Whose queue it is.  [default: the context's, else default]")
@click.option(
    "--wait",
    "wait_s",
    type=FigureRange(min=0, max=86_400),
    default=WAIT_S,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait until publishes arrive there.",
)
@click.option("--give-up", is_flag=True, help="Leave it where it is, while it is `sealing`.")
@target_options
@json_option
def move(
    queue: str, to: str | None, tenant: str | None, wait_s: float, give_up: bool, target: Target, as_json: bool
) -> None:
    """Have QUEUE move to another cluster, while it is in use.

    Publishes pause for some 100 ms, wait meanwhile, and go on at the new cluster. What the old one has is delivered
    from there, and its receipts stay valid. It can be run again: what has begun goes on whoever waits for it.
    `pushq cluster moves` shows how far it is. The key has the scope operator.
    """
    if (to is None) != give_up:
        raise click.UsageError("say what becomes of it: --to CLUSTER or --give-up, one of the two")
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


@command("moves")
@target_options
@json_option
def moves(target: Target, as_json: bool) -> None:
    """Show which queues are on their way from one cluster to another.

    sealing: the old cluster is about to take no more publishes, and the move may be given up. draining: publishes
    arrive at the new one, and what is left in the old one is delivered from there. remembering: nothing is left there
    but the ids that it knows again. A queue that has come there is not in the list. The key has the scope operator.
    """
    items = run(ask(target, lambda admin: admin.ask("GET", MOVES)))["items"]
    if as_json:
        put_items(items)
        return
    columns = ("tenant", "queue", "from", "to", "state", "since", "left")
    put_table(columns, [[*(one[name] for name in columns[:-1]), _shown(one["left"])] for one in items])
    if not items:
        tell("no queue is on its way")


def _shown(left: int | None) -> int | str:
    return "–" if left is None else left


async def place_of(admin: Admin, tenant: str, queue: str) -> dict[str, Any]:
    """Where a queue lies, and its moves that are under way."""
    return await admin.ask("GET", f"/v1/cluster/queues/{quote(tenant, safe='')}/{quote(queue, safe='')}")


async def begin(admin: Admin, tenant: str, queue: str, to: str) -> None:
    """Has a queue move; one that is on its way there goes on."""
    await admin.ask("POST", MOVES, json={"tenant": tenant, "queue": queue, "to": to})


async def arrived(admin: Admin, tenant: str, queue: str, to: str, wait_s: float) -> dict[str, Any]:
    """The queue's place when publishes arrive there. Raises `Failure` when they do not in time."""
    deadline = time.monotonic() + wait_s
    while not is_at(place := await place_of(admin, tenant, queue), to):
        if time.monotonic() > deadline:
            goes_on = "the move goes on: `pushq cluster moves` shows how far it is, and --give-up ends it"
            why = goes_on if place["moves"] else "no move of it is under way: somebody gave it up"
            raise Failure(f'queue "{queue}" is not in {to} yet, it lies in {lies_in(place)}', lines=[why])
        await asyncio.sleep(LOOK_S)
    return place


async def _moved(admin: Admin, tenant: str, queue: str, to: str, wait_s: float) -> tuple[dict[str, Any], str]:
    """The queue's place, and what to say."""
    if is_at(place := await place_of(admin, tenant, queue), to):
        return place, f'queue "{queue}" lies in {to} already'
    await begin(admin, tenant, queue, to)
    if not wait_s:
        return await place_of(admin, tenant, queue), f'queue "{queue}" is on its way from {lies_in(place)} to {to}'
    place = await arrived(admin, tenant, queue, to, wait_s)
    left = [f"{one['from']} delivers {_rest(one['left'])}" for one in place["moves"] if one["state"] == "draining"]
    return place, "; ".join([f'publishes to "{queue}" arrive at {to}', *left])


def _rest(left: int | None) -> str:
    return "what it still has" if left is None else f"{counted(left, 'message')} that it still has"


async def _given_up(admin: Admin, tenant: str, queue: str) -> dict[str, Any]:
    await admin.request("DELETE", f"{MOVES}/{quote(tenant, safe='')}/{quote(queue, safe='')}")
    return await place_of(admin, tenant, queue)
