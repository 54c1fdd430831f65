"""What a gateway asks its backends about: whoever waits is told how it went."""

from __future__ import annotations

import asyncio

import pytest

from backend_store.model import PushqError, Unavailable
from backend_store.remote.queues.answers import Flight
from tests.support.patience import eventually

pytestmark = pytest.mark.anyio


async def _failing(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    ("error", "code"), [(Unavailable("later"), "unavailable"), (AssertionError("a fault of ours"), "internal")]
)
async def test_who_waits_for_an_answer_hears_why_there_is_none(error: Exception, code: str) -> None:
    """After a fault of ours it took the question for answered, and asked again without end."""
    told: list[PushqError | None] = []
    Flight(asyncio.create_task(_failing(error))).then(told.append)
    await eventually(lambda: bool(told))
    assert [one.code for one in told if one is not None] == [code]
