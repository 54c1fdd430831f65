"""Sides that can take turns: a work queue end to end, publishes into a queue, publishes over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tests.bench.clients import Publisher
from tests.bench.codec import CODECS
from tests.bench.feeds import Feed
from tests.bench.http_client import HttpPublisher
from tests.bench.rows import Row
from tests.bench.scale import CONSUMERS, HTTP_CONNECTIONS, PER_FRAME, WINDOW, WORK_BACKLOG_MAX
from tests.bench.scenario_publish import QUEUE, check_stored, keep_full
from tests.bench.scenario_work import Bench, make_publisher
from tests.bench.world import HOST, Server, check, client_args, close, connect, until


@dataclass(frozen=True, kw_only=True)
class Way:
    """The settings of a queue, and how it is used."""

    config: Mapping[str, Any] = field(default_factory=dict)
    feed: Callable[[], Feed] | None = None
    """What is published; plain bodies by default."""
    per_frame: int = PER_FRAME
    ack_singly: bool = False
    ahead_max: int = WORK_BACKLOG_MAX

    async def work(self, server: Server) -> Bench:
        server.create(QUEUE, **self.config)
        bench = Bench(
            server,
            encoding="msgpack",
            per_frame=self.per_frame,
            ack_singly=self.ack_singly,
            feed=self.feed and self.feed(),
            ahead_max=self.ahead_max,
        )
        await bench.open(CONSUMERS)
        return bench

    async def publish(self, server: Server) -> PublishSide:
        server.create(QUEUE, **self.config)
        common = client_args(CODECS["msgpack"], server)
        feed = self.feed and self.feed()
        [publisher] = await connect(lambda: make_publisher(*common, QUEUE, self.per_frame, feed))
        return PublishSide(server, publisher)

    async def http(self, server: Server) -> HttpSide:
        server.create(QUEUE, **self.config)
        make = partial(HttpPublisher, server.port, server.key, queue=QUEUE)
        loop = asyncio.get_running_loop()
        clients = [(await loop.create_connection(make, HOST, server.port))[1] for _ in range(HTTP_CONNECTIONS)]
        side = HttpSide(server, clients)
        await side.rest()
        return side


class PublishSide:
    """One producer that keeps its window full."""

    def __init__(self, server: Server, publisher: Publisher) -> None:
        self.server = server
        self.publisher = publisher

    @property
    def done(self) -> int:
        return self.publisher.acked

    def begin(self, window: int = WINDOW) -> None:
        keep_full(self.publisher, window)()

    async def rest(self) -> None:
        publisher = self.publisher
        publisher.on_acked = None
        await until(lambda: publisher.unconfirmed == 0, [publisher], lambda: f"{publisher.unconfirmed} unconfirmed")

    async def finish(self) -> Row:
        await self.rest()
        close([self.publisher])
        return check_stored(self.server, self.publisher.sent)


class HttpSide:
    """Connections with one request of one message in flight each."""

    def __init__(self, server: Server, clients: list[HttpPublisher]) -> None:
        self.server = server
        self._clients = clients

    @property
    def done(self) -> int:
        return sum(client.answered for client in self._clients)

    def begin(self) -> None:
        for client in self._clients:
            client.resume()

    async def rest(self) -> None:
        clients = self._clients
        for client in clients:
            client.stop()
        await until(lambda: all(client.is_idle for client in clients), clients, lambda: "requests without a response")

    async def finish(self) -> Row:
        check(self._clients)
        for client in self._clients:
            client.close()
        return check_stored(self.server, self.done)
