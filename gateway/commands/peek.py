"""`pushq queue peek`: shows and searches messages without leasing them; no attempt is counted."""

from __future__ import annotations

from typing import Any

import click

from gateway.commands.base import Command, json_option, run
from gateway.commands.figures import Whole, WholeRange
from gateway.commands.messages import as_line, parse_headers
from gateway.commands.moments import MOMENT
from gateway.commands.names import queue_names
from gateway.commands.output import progress, put, put_json, tell
from gateway.commands.target import Target, target_options
from web_console.wording import counted

PAGE_MESSAGES_MAX = 100
STATES = ("ready", "in_flight", "delayed", "dead")


@click.command("peek", cls=Command)
@click.argument("name", metavar="QUEUE", shell_complete=queue_names)
@click.option("--state", type=click.Choice(STATES), default="ready", show_default=True)
@click.option("--limit", type=WholeRange(min=1), default=10, show_default=True, help="Maximum number of messages.")
@click.option("--id", "message_id", help="Only the message with this id.")
@click.option("--key", help="Only messages with this key.")
@click.option(
    "--header", "headers", metavar="NAME=VALUE", multiple=True, help="Only messages with this header. Repeatable."
)
@click.option("--contains", metavar="TEXT", help="Only messages whose body contains this text.")
@click.option("--since", type=MOMENT, help="Published at or after: RFC 3339, or an age such as 15m or 2h.")
@click.option("--until", type=MOMENT, help="Published before.")
@click.option("--from-seq", type=Whole(), help="Starting at this seq.")
@click.option("--partition", type=WholeRange(min=0), help="Only in this partition.")
@target_options
@json_option
def peek(
    name: str,
    limit: int,
    message_id: str | None,
    headers: tuple[str, ...],
    target: Target,
    as_json: bool,
    **filters: Any,
) -> None:
    """Look at messages of QUEUE without leasing them or counting an attempt.

    QUEUE.dead and QUEUE.late work like any other queue here. Messages must match all given filters.
    """
    filters |= {"id": message_id, "headers": parse_headers(headers)}
    found = run(_peek(name, limit, filters, target))
    if as_json:
        put_json(found)
        return
    for message in found["items"]:
        put(as_line(message))
    if found["next"] is not None:
        tell(f"there are more: --limit {limit * 10}")
    elif not found["items"]:
        tell(f"no match, scanned {counted(found['scanned'], 'message')}")


async def _peek(name: str, limit: int, filters: dict[str, Any], target: Target) -> dict[str, Any]:
    """Reads pages until `limit` messages are found or the queue's end is reached."""
    items: list[Any] = []
    cursor: str | None = None
    scanned = 0
    async with target.admin() as admin:
        with progress(f"scanning {name}", None) as advance:
            while True:
                wanted = min(PAGE_MESSAGES_MAX, limit - len(items))
                page = await admin.peek(name, limit=wanted, cursor=cursor, **filters)
                items += page["items"]
                scanned += page["scanned"]
                cursor = page["next"]
                advance(scanned)
                if cursor is None or len(items) >= limit:
                    return {"items": items, "next": cursor, "scanned": scanned}
