"""A temporary queue for one check: created under a unique name, deleted at the end."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from gateway.commands.output import tell
from gateway.commands.target import Target

if TYPE_CHECKING:
    from push.client import Admin

NAME_BYTES = 6


@asynccontextmanager
async def scratch_queue(target: Target, purpose: str) -> AsyncIterator[str]:
    """Yields the name of a new work queue, which is deleted with all its messages at the end."""
    name = f"pushq-{purpose}-{secrets.token_hex(NAME_BYTES)}"
    async with target.admin() as admin:
        await admin.create_queue(name)
        try:
            yield name
        finally:
            if not await _is_deleted(admin, target, name):
                tell(
                    f'queue "{name}" is left behind: this server allows no deletion over HTTP, and '
                    f"{target.socket} is not its socket"
                )
                tell(f"  to delete it on the server's machine: pushq queue delete {name} --discard --yes --data DIR")


async def _is_deleted(admin: Admin, target: Target, name: str) -> bool:
    """Deletes over HTTP, else over the socket: only the same server has a queue of this name. False if neither may."""
    from push.client import Forbidden, NotFound, Unavailable

    try:
        await admin.delete_queue(name, discard=True)
        return True
    except Forbidden:
        if not target.socket.is_socket():
            return False
    try:
        async with target.local_admin() as local:
            await local.delete_queue(name, discard=True)
    except (Forbidden, NotFound, Unavailable):
        return False
    return True
