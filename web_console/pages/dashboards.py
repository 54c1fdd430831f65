"""Dashboards that a tenant composes of its own queues and saves on the server."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from typing import Any, Final

from web_console.forms import wrong
from web_console.limits import DASHBOARD_QUEUES_MAX, DASHBOARDS_MAX
from web_console.pages.queues import COLUMNS, as_row, plots
from web_console.tables import Button, Column, Table
from web_console.visit import Problem, Visit, page_path, queue_path

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
SHOWN: Final = (("Backlog", "messages", ("ready", "in_flight", "dead")),)


async def load(visit: Visit) -> dict[str, Any]:
    saved = visit.server.dashboards(visit.caller.tenant)
    rows = [
        {"name": name, "href": page_path("dashboards", name), "queues": " ".join(queues), "buttons": [_remove(name)]}
        for name, queues in sorted(saved.items())
    ]
    table = Table(
        "Dashboards",
        (Column("name", "Dashboard", link="href"), Column("queues", "Queues", "code")),
        rows,
        "No dashboards yet. Create one below.",
        path=visit.path,
        query=dict(visit.query),
        total=len(rows),
        has_buttons=True,
    )
    return {"table": table}


def _remove(name: str) -> Button:
    return Button("remove-dashboard", "Remove", {"item": name}, f"Removes the dashboard {name!r} for everybody.")


async def load_one(visit: Visit) -> dict[str, Any]:
    name = visit.params[0]
    queues = visit.server.dashboards(visit.caller.tenant).get(name)
    if queues is None:
        raise Problem(404, "Not found", "not-found", f"there is no dashboard {name[:100]!r}")
    there = {row.name: row for row in await visit.queues()}
    table = Table(
        name,
        tuple(replace(one, is_sortable=False) for one in COLUMNS if one.kind != "line"),  # the order is the owner's
        [as_row(there[queue]) for queue in queues if queue in there],
        "None of its queues exist any more.",
        path=visit.path,
        query=dict(visit.query),
    )
    drawn = []
    for queue in queues:
        series = await visit.maybe(queue_path(queue, "series"), range="15m") if queue in there else None
        drawn += [(queue, *plot[1:]) for plot in plots(series, SHOWN)] if series else []
    cli = shlex.join(["pushq", "top", *(queue for queue in queues if queue in there)])
    return {"title": name, "table": table, "plots": drawn, "cli": cli}


def checked(name: str, text: str, saved: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The queues of a dashboard. Raises `Problem`, which names the field, for one that cannot be saved."""
    queues = tuple(dict.fromkeys(text.replace(",", " ").split()))
    if NAME.fullmatch(name) is None:
        raise wrong("name has 1 to 64 of A-Z a-z 0-9 _ . -", "name")
    if not 1 <= len(queues) <= DASHBOARD_QUEUES_MAX:
        detail = f"queues names {len(queues)}; a dashboard has 1 to {DASHBOARD_QUEUES_MAX}"
        raise wrong(detail, "queues")
    if name not in saved and len(saved) >= DASHBOARDS_MAX:
        detail = f"there are {len(saved)} dashboards already; remove one first"
        raise Problem(409, "Conflict", "conflict", detail)
    return queues
