"""`pushq queue cancel`: cancels a message that was not delivered yet."""

from __future__ import annotations

import click

from gateway.commands.asking import ask
from gateway.commands.base import Command, json_option, run
from gateway.commands.names import queue_names
from gateway.commands.output import put_json, tell
from gateway.commands.target import Target, target_options


@click.command("cancel", cls=Command)
@click.argument("name", metavar="QUEUE", shell_complete=queue_names)
@click.argument("message_id", metavar="ID")
@target_options
@json_option
def cancel(name: str, message_id: str, target: Target, as_json: bool) -> None:
    """Cancel the message ID of QUEUE while it is scheduled or ready.

    A message that is in flight cannot be cancelled.
    """
    run(ask(target, lambda admin: admin.cancel_message(name, message_id)))
    if as_json:
        put_json({"queue": name, "id": message_id, "cancelled": True})
    else:
        tell(f'cancelled message "{message_id}" of queue "{name}"')
