"""`pushq queue redrive`: moves dead letters back, and shows the progress."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from gateway.commands.asking import named
from gateway.commands.base import Command, json_option, run
from gateway.commands.exits import Failure
from gateway.commands.figures import FigureRange
from gateway.commands.messages import parse_headers
from gateway.commands.moments import MOMENT
from gateway.commands.names import queue_names
from gateway.commands.output import progress, put, put_json, tell
from gateway.commands.target import Target, target_options
from web_console.wording import counted

if TYPE_CHECKING:
    from push.client import Admin

REASONS = ("max_attempts", "expired", "overflow", "undeliverable", "queue_deleted")


@click.command("redrive", cls=Command)
@click.argument("name", metavar="QUEUE", shell_complete=queue_names)
@click.option(
    "--to",
    metavar="QUEUE",
    shell_complete=queue_names,
    help="Target queue.  [default: the queue each message came from]",
)
@click.option("--reason", type=click.Choice(REASONS), help="Only messages dead-lettered for this reason.")
@click.option("--id", "ids", metavar="ID", multiple=True, help="Only this message. Repeatable.")
@click.option(
    "--header", "headers", metavar="NAME=VALUE", multiple=True, help="Only messages with this header. Repeatable."
)
@click.option(
    "--older-than", type=MOMENT, help="Only messages dead-lettered before: RFC 3339, or an age such as 15m or 2h."
)
@click.option("--rate", "rate_per_s", type=FigureRange(min=0, min_open=True), help="Maximum messages per second.")
@click.option("--dry-run", is_flag=True, help="Only count the messages, without moving them.")
@click.option("--wait/--no-wait", default=True, help="Wait until it is done, or start it and exit.  [default: wait]")
@target_options
@json_option
def redrive(
    name: str,
    to: str | None,
    reason: str | None,
    ids: tuple[str, ...],
    headers: tuple[str, ...],
    older_than: datetime | None,
    rate_per_s: float | None,
    dry_run: bool,
    wait: bool,
    target: Target,
    as_json: bool,
) -> None:
    """Move dead letters of QUEUE back to the queues they came from. Their attempts restart at 1.

    QUEUE is the queue they died in, its QUEUE.dead, or a queue that others use as their dead_letter_queue. Ctrl-C
    stops the redrive; what was moved stays moved.
    """
    wanted: dict[str, Any] = {"to": to, "reason": reason, "older_than": older_than}
    wanted |= {"ids": list(ids) or None, "header": parse_headers(headers)}
    if dry_run:
        _tell_total(run(_count(name, wanted, target)), name, as_json)
        return
    job = run(_redrive(name, wanted | {"rate_per_s": rate_per_s}, wait, target))
    if as_json:
        put_json(job)
    if job["state"] in ("failed", "cancelled"):
        why = job["error"] or "it was cancelled"
        raise Failure(f'the redrive of "{name}" moved {job["done"]} of {counted(job["total"], "message")}: {why}')
    if not as_json:
        total = counted(job["total"], "message")
        tell(f'queue "{name}": redrive {job["id"]} {job["state"]}, {job["done"]} of {total} moved')


def _tell_total(total: int, name: str, as_json: bool) -> None:
    if as_json:
        put_json({"total": total})
    else:
        put(str(total))
        tell(f'queue "{name}": {counted(total, "message")} would be moved')


async def _count(name: str, wanted: dict[str, Any], target: Target) -> int:
    async with target.admin() as admin, named(admin, _target_path(wanted)):
        return await admin.count_redrive(name, **wanted)


async def _redrive(name: str, wanted: dict[str, Any], wait: bool, target: Target) -> dict[str, Any]:
    async with target.admin() as admin:
        async with named(admin, _target_path(wanted)):
            job = await admin.start_redrive(name, **wanted)
        return await _watch(admin, name, job) if wait else job


def _target_path(wanted: dict[str, Any]) -> dict[str, str]:
    return {} if wanted["to"] is None else {"/to": f"/v1/queues/{quote(wanted['to'], safe='')}"}


async def _watch(admin: Admin, name: str, job: dict[str, Any]) -> dict[str, Any]:
    redrive_id = job["id"]
    try:
        with progress(f"redriving {name}", job["total"]) as advance:
            async for job in admin.watch_redrive(name, redrive_id):
                advance(job["done"])
    except asyncio.CancelledError:
        await admin.cancel_redrive(name, redrive_id)
        raise
    return job
