"""`pushq rotate-keys`: replaces the master key, creates new data keys, and shows the progress."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from gateway.commands.base import command, json_option, run
from gateway.commands.exits import Failure
from gateway.commands.names import queue_names
from gateway.commands.output import progress, put_json, tell
from gateway.commands.target import Target, target_options
from web_console.wording import counted


@command("rotate-keys")
@click.option(
    "--master",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Wrap every data key with the master key in FILE from now on.",
)
@click.option(
    "--queue",
    "queues",
    metavar="QUEUE",
    multiple=True,
    shell_complete=queue_names,
    help="Create a new data key for QUEUE. Repeatable.",
)
@click.option("--all-queues", is_flag=True, help="Create new data keys for all queues of all tenants.")
@click.option("--wait/--no-wait", default=True, help="Wait until it is done, or start it and exit.  [default: wait]")
@target_options
@json_option
def rotate_keys(
    master: Path | None, queues: tuple[str, ...], all_queues: bool, wait: bool, target: Target, as_json: bool
) -> None:
    """Rotate encryption keys while the server runs.

    Nothing is interrupted, and no message is rewritten. This uses the data folder's socket; the key needs the scope
    operator. A rotation cut off by a crash resumes at the next start. Ctrl-C stops it; completed steps stay.
    """
    if master is None and not queues and not all_queues:
        raise click.UsageError("choose what to rotate: --master FILE, --queue QUEUE or --all-queues")
    wanted = {"master_file": str(master.resolve()) if master is not None else None, "all_queues": all_queues}
    job = run(_rotate(wanted | {"queues": list(queues) or None}, wait, target))
    if as_json:
        put_json(job)
    if job["state"] in ("failed", "cancelled"):
        why = job["error"] or "it was cancelled"
        raise Failure(f"rotation {job['id']} finished {job['done']} of {counted(job['total'], 'step')}: {why}")
    if not as_json:
        tell(f"rotation {job['id']} {job['state']}, {job['done']} of {counted(job['total'], 'key')}")


async def _rotate(wanted: dict[str, Any], wait: bool, target: Target) -> dict[str, Any]:
    async with target.local_admin() as admin:
        job = await admin.start_rotation(**wanted)
        if not wait:
            return job
        rotation_id = job["id"]
        try:
            with progress("rotating keys", job["total"]) as advance:
                async for job in admin.watch_rotation(rotation_id):
                    advance(job["done"])
        except asyncio.CancelledError:
            await admin.cancel_rotation(rotation_id)
            raise
        return job
