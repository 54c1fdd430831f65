"""A gateway's line to a backend, without one."""

from __future__ import annotations

import asyncio

import pytest

from backend_store.model import Unavailable
from backend_store.remote import line as lines
from backend_store.remote.limits import LINE_PING_SECONDS, LINE_SILENCE_SECONDS_MAX
from backend_store.remote.line import Line
from backend_store.shard.limits import SESSION_SECONDS_DEFAULT
from tests.support.gateways import Gateway

pytestmark = pytest.mark.anyio


def test_gateway_leaves_a_silent_backend_before_another_one_leads() -> None:
    """A stopped leader was replaced within six seconds, and its gateways waited ten for it to answer."""
    assert LINE_PING_SECONDS + LINE_SILENCE_SECONDS_MAX < SESSION_SECONDS_DEFAULT


class Nowhere:
    def address(self, shard: int) -> None:
        """Nobody is known."""

    def failed(self, shard: int, address: tuple[str, int], leader: str | None) -> None: ...


async def test_request_is_not_sent_by_a_line_that_was_lost_while_it_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    """It lay in a queue that nobody reads, and its caller was told that the change may have been made."""
    monkeypatch.setattr(lines, "ASK_MS_MAX", 300)
    line = Line(0, Nowhere(), Gateway(), "gateway", None)
    asking = asyncio.ensure_future(line.ask({"what": "ever"}, may_repeat=False))
    for _ in range(10):
        await asyncio.sleep(0)
    line._opened()
    line._lose()
    with pytest.raises(Unavailable):
        await asking
    await line.close()
