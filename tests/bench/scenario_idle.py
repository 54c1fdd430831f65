"""Idle connections: the server memory taken by a silent, subscribed WebSocket."""

from __future__ import annotations

import asyncio

from tests.bench.clients import Client, Consumer, Publisher, Reader, Tally
from tests.bench.codec import CODECS, AnyArrival, Encoding
from tests.bench.machine import Meter
from tests.bench.rows import Row
from tests.bench.scale import CREDIT
from tests.bench.world import World, check, client_args, close, connect, until

STREAM, WORK = "bench-stream", "bench-work"
SETTLE_S = 1.0
UNBOUND = {"PUSHQ_LIMITS__CONNECTIONS_PER_TENANT_MAX": "0"}
"""All connections, and two publishers, belong to one tenant: more than a tenant may have by default."""


async def idle(world: World, *, encoding: Encoding) -> Row:
    """Half of the connections read a stream, half consume a work queue; at the end all prove that they still listen."""
    half = world.scale.idle // 2
    with world.server(env=UNBOUND) as server:
        server.create(STREAM, kind="stream")
        server.create(WORK)
        common = client_args(CODECS[encoding], server)
        tally, worked = Tally(), [0]

        def count(frame: AnyArrival) -> None:
            worked[0] += len(frame.messages)

        [streaming] = await connect(lambda: Publisher(*common, queue=STREAM))
        [working] = await connect(lambda: Publisher(*common, queue=WORK))
        before_kib = server.process.rss_anon_kib()
        meter = Meter(server.process)
        readers = await connect(lambda: Reader(*common, queue=STREAM, tally=tally), half)
        await asyncio.sleep(SETTLE_S)
        between_kib = server.process.rss_anon_kib()
        consumers = await connect(lambda: Consumer(*common, queue=WORK, credit=CREDIT, on_messages=count), half)
        figures = meter.figures(2 * half)
        await asyncio.sleep(SETTLE_S)
        after_kib = server.process.rss_anon_kib()
        clients: list[Client] = [streaming, working, *readers, *consumers]
        check(clients)
        streaming.send(1)
        working.send(half)
        await until(
            lambda: tally.count == half and worked[0] == half,
            clients,
            lambda: f"{tally.count} readers and {worked[0]} of {half} messages of work answered",
        )
        close(clients)
    return {
        "rate": round(2 * half / (figures["wall_s"] - SETTLE_S)),
        "unit": "connects/s",
        **figures,
        "rss_anon_mib": round(after_kib / 1024, 1),
        "kib_per_connection": round((after_kib - before_kib) / (2 * half), 2),
        "kib_per_reader": round((between_kib - before_kib) / half, 2),
        "kib_per_consumer": round((after_kib - between_kib) / half, 2),
        "lost": 0,
        "duplicates": 0,
    }
