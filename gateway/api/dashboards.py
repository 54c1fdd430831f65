"""Stores the console's saved dashboards: each has a name within its tenant and the queues that it shows."""

from __future__ import annotations

from typing import Final

import msgspec

from backend_store.client import Document, Documents

DASHBOARD: Final = "dashboard"


def of_tenant(documents: Documents, tenant: str) -> dict[str, tuple[str, ...]]:
    """Name → queues, in the order they are shown."""
    prefix = f"{tenant}/"
    return {
        name.removeprefix(prefix): msgspec.json.decode(data, type=tuple[str, ...])
        for name, data in documents.all(DASHBOARD)
        if name.startswith(prefix)
    }


async def save(documents: Documents, tenant: str, name: str, queues: tuple[str, ...] | None) -> None:
    """Saves a dashboard, or removes it if `queues` is None. Returns when that is durable."""
    data = None if queues is None else msgspec.json.encode(queues)
    await documents.write([Document(DASHBOARD, f"{tenant}/{name}", data)])


async def forget_tenant(documents: Documents, tenant: str) -> None:
    """Removes the dashboards of a removed tenant, so that a later tenant of its name has none of them."""
    await documents.write([Document(DASHBOARD, f"{tenant}/{name}", None) for name in of_tenant(documents, tenant)])
