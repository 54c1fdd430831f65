"""Queries the other gateway processes of this server from the first one, which answers for all of them.

Each has a socket in the data folder that only the folder's owner can open. A process that does not answer, because it
is being restarted, has no connections either, and is left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar
from urllib.parse import quote

import httpx2
import msgspec

from gateway.api.shapes.bodies import ConnectionPage, ConnectionView

T = TypeVar("T")

_page = msgspec.json.Decoder(ConnectionPage).decode
_AUTHORIZATION = b"authorization"


class Siblings:
    def __init__(self, clients: Mapping[int, httpx2.AsyncClient]) -> None:
        """`clients`: process number → client of that process's socket."""
        self._clients = clients

    async def metrics(self, accept: str) -> dict[int, str]:
        """The metrics page of each process, by its number."""

        async def page(client: httpx2.AsyncClient) -> str:
            return (await client.get("/metrics", headers={"accept": accept})).raise_for_status().text

        return await self._of_each(page)

    async def connections(
        self, headers: Mapping[bytes, bytes], limit: int, cursor: str | None
    ) -> tuple[Sequence[ConnectionView], bool]:
        """Connections that the caller may see, up to `limit` of each process after the cursor; and whether a process
        has more."""
        query = {"limit": str(limit), **({"cursor": cursor} if cursor else {})}

        async def page(client: httpx2.AsyncClient) -> ConnectionPage:
            answer = await client.get("/v1/connections", params=query, headers=_of_caller(headers))
            return _page(answer.raise_for_status().content)

        pages = (await self._of_each(page)).values()
        return [view for found in pages for view in found.items], any(found.next is not None for found in pages)

    async def kick(self, headers: Mapping[bytes, bytes], connection: str) -> bool:
        """Closes a connection. False if none of the processes had it."""

        async def ended(client: httpx2.AsyncClient) -> bool:
            path = f"/v1/connections/{quote(connection, safe='')}"
            return (await client.delete(path, headers=_of_caller(headers))).status_code == 204

        return any((await self._of_each(ended)).values())

    async def _of_each(self, ask: Callable[[httpx2.AsyncClient], Awaitable[T]]) -> dict[int, T]:
        async def asked(number: int, client: httpx2.AsyncClient) -> tuple[int, T] | None:
            try:
                return number, await ask(client)
            except (httpx2.HTTPError, OSError):
                return None

        found = await asyncio.gather(*(asked(number, client) for number, client in self._clients.items()))
        return dict(one for one in found if one is not None)

    async def close(self) -> None:
        for client in self._clients.values():
            await client.aclose()


def _of_caller(headers: Mapping[bytes, bytes]) -> dict[str, str]:
    """Passes the caller's credential on: each process authenticates it again, and shows only what it may see."""
    return {"authorization": headers[_AUTHORIZATION].decode("latin-1")} if _AUTHORIZATION in headers else {}
