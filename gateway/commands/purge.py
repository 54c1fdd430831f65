"""`pushq queue purge`: starts to remove every message of a queue, and shows the progress."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from gateway.commands.base import Command, json_option, run, yes_option
from gateway.commands.exits import Failure
from gateway.commands.names import queue_names
from gateway.commands.output import confirm, progress, put_json, tell
from gateway.commands.target import Target, target_options
from web_console.wording import counted

if TYPE_CHECKING:
    from push.client import Admin

POLL_S = 0.1
RUNNING_STATES = frozenset({"pending", "queued", "running"})


@click.command("purge", cls=Command)
@click.argument("name", metavar="QUEUE", shell_complete=queue_names)
@yes_option
@click.option("--no-wait", is_flag=True, help="Start the purge and exit without waiting.")
@target_options
@json_option
def purge(name: str, is_sure: bool, no_wait: bool, target: Target, as_json: bool) -> None:
    """Delete all messages of QUEUE; the queue stays."""
    job = run(_purge(name, is_sure, no_wait, target))
    if as_json:
        put_json(job)
    if job.get("error"):
        raise Failure(f'the purge of "{name}" failed: {job["error"]}')
    if not as_json:
        tell(f'queue "{name}": purge {job["id"]} {job["state"]}, {counted(job["done"], "message")} removed')


async def _purge(name: str, is_sure: bool, no_wait: bool, target: Target) -> dict[str, Any]:
    async with target.admin() as admin:
        stats = (await admin.get_queue(name))["stats"]
        holds = stats["ready"] + stats["in_flight"] + stats["delayed"]
        confirm(f'Delete {counted(holds, "message")} from queue "{name}"?', is_sure=is_sure)
        job = await admin.purge_queue(name)
        return job if no_wait else await _watch(admin, name, job)


async def _watch(admin: Admin, name: str, job: dict[str, Any]) -> dict[str, Any]:
    with progress(f"purging {name}", job.get("total")) as advance:
        while job["state"] in RUNNING_STATES:
            await asyncio.sleep(POLL_S)
            job = await admin.get_purge(name, job["id"])
            advance(job["done"])
    return job
