"""Fan-out: one publisher and hundreds of readers of a stream, at full speed and at a moderate rate."""

from __future__ import annotations

import asyncio

from tests.bench.clients import ClientFailed, Publisher, Reader, SamplingReader, Tally
from tests.bench.codec import CODECS, Encoding
from tests.bench.machine import Meter
from tests.bench.rows import Row, percentiles_ms
from tests.bench.scale import FANOUT_AHEAD_MAX, FANOUT_RATE
from tests.bench.scenario_work import send_paced
from tests.bench.world import Server, World, client_args, close, connect, until

STREAM = "bench"
SAMPLED_EVERY = 10


class Audience:
    """The publisher and the readers of a stream; one reader in ten checks every message."""

    def __init__(self) -> None:
        self.tally = Tally()
        self.readers: list[Reader | SamplingReader] = []

    async def open(self, world: World, server: Server, encoding: Encoding) -> None:
        common, size = client_args(CODECS[encoding], server), world.scale.subscribers
        sampled = max(1, size // SAMPLED_EVERY)
        self.readers += await connect(lambda: SamplingReader(*common, queue=STREAM, tally=self.tally), sampled)
        self.readers += await connect(lambda: Reader(*common, queue=STREAM, tally=self.tally), size - sampled)
        [self.publisher] = await connect(lambda: Publisher(*common, queue=STREAM, per_frame=1))

    async def finish(self) -> Row:
        """Waits until every reader has every message. Raises if one has more or fewer."""
        publisher = self.publisher
        publisher.on_acked = self.tally.on_data = None
        expected = publisher.sent
        clients = [publisher, *self.readers]
        await until(
            lambda: publisher.unconfirmed == 0 and all(reader.count >= expected for reader in self.readers),
            clients,
            lambda: f"{expected} sent, the slowest reader has {min(reader.count for reader in self.readers)}",
        )
        close(clients)
        if any(reader.count != expected for reader in self.readers):
            raise ClientFailed(f"{expected} sent, a reader has {max(reader.count for reader in self.readers)}")
        return {"lost": 0, "duplicates": 0}


async def fanout(world: World, *, encoding: Encoding) -> Row:
    """At full speed, with a limit on messages that have not reached all readers yet."""
    scale = world.scale
    with world.server() as server:
        server.create(STREAM, kind="stream")
        audience = Audience()
        await audience.open(world, server, encoding)
        publisher, tally, size = audience.publisher, audience.tally, scale.subscribers

        def fill() -> None:
            while publisher.sent * size - tally.count <= (FANOUT_AHEAD_MAX - 1) * size:
                publisher.send_stamped()

        publisher.on_acked = tally.on_data = fill
        fill()
        await asyncio.sleep(scale.warmup_seconds)
        tally.latencies_ns.clear()
        meter, began = Meter(server.process), tally.count
        await asyncio.sleep(scale.seconds)
        count = tally.count - began
        figures = meter.figures(count)
        measured = percentiles_ms(tally.latencies_ns)
        rss_anon_mib = server.rss_anon_mib()
        ended = await audience.finish()
    return {
        "rate": round(count / figures["wall_s"]),
        "unit": "deliveries/s",
        **figures,
        "rss_anon_mib": rss_anon_mib,
        **measured,
        **ended,
    }


async def fanout_latency(world: World, *, encoding: Encoding) -> Row:
    """A few messages per second, each to all readers."""
    scale = world.scale
    with world.server() as server:
        server.create(STREAM, kind="stream")
        audience = Audience()
        await audience.open(world, server, encoding)
        await send_paced(audience.publisher, FANOUT_RATE, scale.warmup_seconds)
        audience.tally.latencies_ns.clear()
        meter = Meter(server.process)
        sent = await send_paced(audience.publisher, FANOUT_RATE, scale.seconds)
        figures = meter.figures(sent * scale.subscribers)
        rss_anon_mib = server.rss_anon_mib()
        ended = await audience.finish()
        measured = percentiles_ms(audience.tally.latencies_ns)
    return {
        "rate": round(sent * scale.subscribers / scale.seconds),
        "unit": "deliveries/s",
        **figures,
        "rss_anon_mib": rss_anon_mib,
        **measured,
        **ended,
    }
