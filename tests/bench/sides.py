"""What can take turns: a work queue end to end, publishes into a queue, publishes over HTTP; each with its own server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tests.bench.clients import ClientFailed, Publisher
from tests.bench.feeds import Feed
from tests.bench.http_client import HttpPublisher
from tests.bench.rows import Row
from tests.bench.scale import CONSUMERS, HTTP_CONNECTIONS, PER_FRAME, WINDOW, WORK_BACKLOG_MAX
from tests.bench.scenario_publish import QUEUE, keep_full
from tests.bench.scenario_work import Bench, make_publisher
from tests.bench.speech import SPEECHES
from tests.bench.turns import Side, compare
from tests.bench.world import HOST, ROOT, Server, World, close, connect, say_in, until

TURNS_PER_RUN = 4
"""A turn is this part of what other scenarios measure for: a pair should be close together."""


class FinishedSide(Side):
    """One that can show at the end that nothing was lost."""

    async def finish(self) -> Row: ...


MakeSide = Callable[[Server], "asyncio.Future[FinishedSide]"]


class PublishSide:
    """One producer with its window full."""

    def __init__(self, server: Server, publisher: Publisher, window: int) -> None:
        self.server = server
        self.publisher = publisher
        self._window = window

    @property
    def done(self) -> int:
        return self.publisher.acked

    def begin(self) -> None:
        keep_full(self.publisher, self._window)()

    async def rest(self) -> None:
        publisher = self.publisher
        publisher.on_acked = None
        await until(lambda: publisher.unconfirmed == 0, [publisher], lambda: f"{publisher.unconfirmed} unconfirmed")

    async def finish(self) -> Row:
        await self.rest()
        close([self.publisher])
        return _check_stored(self.server, self.publisher.sent)
