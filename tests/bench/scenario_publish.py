"""Durable publish: how many messages per second one connection gets stored, and what that costs the server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from tests.bench.clients import ClientFailed, Publisher
from tests.bench.codec import CODECS, Encoding
from tests.bench.http_client import HttpPublisher
from tests.bench.machine import Meter
from tests.bench.rows import Row, percentiles_ms
from tests.bench.scale import HTTP_CONNECTIONS, PER_FRAME, WINDOW
from tests.bench.world import HOST, Served, Server, World, check, client_args, close, connect, until

QUEUE = "bench"


def keep_full(publisher: Publisher, window: int, room: Callable[[], int] | None = None) -> Callable[[], None]:
    """Sends when fewer than `window` messages are unconfirmed, at most as many as `room` allows; call it to begin."""

    def fill() -> None:
        count = window - publisher.unconfirmed
        if room is not None:
            count = min(count, room())
        if count > 0:
            publisher.send(count)

    publisher.on_acked = fill
    return fill


async def publish(
    world: World,
    *,
    encoding: Encoding,
    window: int = WINDOW,
    per_frame: int = PER_FRAME,
    served: Served = World.server,
) -> Row:
    scale = world.scale
    with served(world) as server:
        server.create(QUEUE)
        [publisher] = await connect(
            lambda: Publisher(*client_args(CODECS[encoding], server), queue=QUEUE, per_frame=per_frame)
        )
        keep_full(publisher, window)()
        await asyncio.sleep(scale.warmup_seconds)
        meter, began = Meter(server.process), publisher.acked
        await asyncio.sleep(scale.seconds)
        count = publisher.acked - began
        figures = meter.figures(count)
        rss_anon_mib = server.rss_anon_mib()
        publisher.on_acked = None
        await until(lambda: publisher.unconfirmed == 0, [publisher], lambda: f"{publisher.unconfirmed} unconfirmed")
        close([publisher])
        stored = check_stored(server, publisher.sent)
    return {
        "rate": round(count / figures["wall_s"]),
        "unit": "msg/s",
        **figures,
        "rss_anon_mib": rss_anon_mib,
        **stored,
    }


def check_stored(server: Server, sent: int) -> Row:
    """Checks that everything confirmed is in the queue, once."""
    stats = server.stats(QUEUE)
    if not stats["ready"] == stats["published_total"] == sent:
        raise ClientFailed(f"{sent} messages were confirmed, the queue reports {stats}")
    return {"lost": 0, "duplicates": 0}


async def http_publish(world: World) -> Row:
    """Each connection has one request with one message in flight."""
    scale, loop = world.scale, asyncio.get_running_loop()
    with world.server() as server:
        server.create(QUEUE)
        make = partial(HttpPublisher, server.port, server.key, queue=QUEUE)
        clients = [(await loop.create_connection(make, HOST, server.port))[1] for _ in range(HTTP_CONNECTIONS)]
        await asyncio.sleep(scale.warmup_seconds)
        for client in clients:
            client.latencies_ns.clear()
        meter = Meter(server.process)
        await asyncio.sleep(scale.seconds)
        latencies_ns = [value for client in clients for value in client.latencies_ns]
        figures = meter.figures(len(latencies_ns))
        rss_anon_mib = server.rss_anon_mib()
        check(clients)
        for client in clients:
            client.stop()
        await until(lambda: all(client.is_idle for client in clients), clients, lambda: "requests without a response")
        for client in clients:
            client.close()
        stored = check_stored(server, sum(client.answered for client in clients))
    return {
        "rate": round(len(latencies_ns) / figures["wall_s"]),
        "unit": "req/s",
        **figures,
        "rss_anon_mib": rss_anon_mib,
        **percentiles_ms(latencies_ns),
        **stored,
    }
