"""The saved dashboards of the console, each a name of a tenant and the queues that it shows."""

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
    """Returns when it is on the disk; None removes it."""
    data = None if queues is None else msgspec.json.encode(queues)
    await documents.write([Document(DASHBOARD, f"{tenant}/{name}", data)])


async def forget_tenant(documents: Documents, tenant: str) -> None:
    """The tenant was removed: the next one of its name has none of these."""
    await documents.write([Document(DASHBOARD, f"{tenant}/{name}", None) for name in of_tenant(documents, tenant)])
