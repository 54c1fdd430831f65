"""Single requests to the HTTP API, and lists that come in pages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from gateway.commands.target import Target

if TYPE_CHECKING:
    from push.client import Admin

T = TypeVar("T")


async def ask(target: Target, question: Callable[[Admin], Awaitable[T]]) -> T:
    """Opens a client, makes the request, and closes the client."""
    async with target.admin() as admin:
        return await question(admin)


async def all_pages(list_page: Callable[..., Awaitable[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Every item of a list, page after page."""
    items: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        page = await list_page(cursor=cursor)
        items += page["items"]
        cursor = page.get("next")
        if cursor is None:
            return items
