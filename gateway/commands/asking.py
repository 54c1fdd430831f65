"""Single requests to the HTTP API, lists that come in pages, and names that do not exist."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from gateway.commands.target import Target

if TYPE_CHECKING:
    from push.client import Admin

T = TypeVar("T")


async def ask(target: Target, question: Callable[[Admin], Awaitable[T]]) -> T:
    """Opens a client, makes the request, and closes the client."""
    async with target.admin() as admin:
        return await question(admin)


@asynccontextmanager
async def named(admin: Admin, paths: Mapping[str, str]) -> AsyncIterator[None]:
    """Around a request that names other things: raises `NotFound` for one that does not exist, where the API refuses
    the request as invalid.

    `paths`: for each pointer into the request, the path of what is named there.
    """
    from push.client import ApiError, NotFound, PushqError

    try:
        yield
    except ApiError as refusal:
        for path in [paths[error.pointer] for error in refusal.problem.errors if error.pointer in paths]:
            try:
                await admin.request("GET", path)
            except NotFound:
                raise
            except PushqError:  # such as of a key that may not see it
                continue
        raise


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
