"""A live page: what it is told while the server sees, cannot see, and does not want it any more."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from sse_starlette.event import ServerSentEvent

from web_console import console
from web_console.console import watched
from web_console.visit import Problem, SignedOut

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "LIVE_SECONDS", 0.001)


def problem(status: int) -> Problem:
    return Problem(status, "Title", "code", "detail")


async def told(*looks: str | Exception | None) -> list[str]:
    """The events of a page whose looks end so: names, and of those without one the data."""
    left = list(looks)

    async def look() -> str | None:
        found = left.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    events: AsyncIterator[ServerSentEvent] = watched(look)
    return [event.event or str(event.data) async for event in events]


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_look_that_fails_ends_no_page_and_is_none(status: int) -> None:
    assert await told("one", problem(status), problem(status), "two", None) == [
        "one", "looked", "two", "looked", "signed-out",
    ]  # fmt: skip


async def test_a_page_ends_with_the_session_of_whoever_looks() -> None:
    assert await told("one", SignedOut()) == ["one", "looked", "signed-out"]
    assert await told(problem(401)) == ["signed-out"]


@pytest.mark.parametrize("status", [403, 404])
async def test_a_page_ends_with_what_it_shows_and_says_that(status: int) -> None:
    assert await told("one", problem(status)) == ["one", "looked", "gone"]
