"""The form that publishes one message."""

from __future__ import annotations

from typing import Any

from web_console.visit import Visit, queue_path


async def load(visit: Visit) -> dict[str, Any]:
    name = visit.params[0]
    await visit.maybe(queue_path(name))
    return {"title": f"Publish to {name}", "name": name, "sent": visit.query.get("sent")}
