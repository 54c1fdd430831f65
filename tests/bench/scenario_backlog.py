"""A million waiting messages: the memory they take, their effect on delivery, and the duration of a start with them."""

from __future__ import annotations

import asyncio

from tests.bench.clients import ClientFailed, Publisher
from tests.bench.codec import CODECS, Encoding
from tests.bench.machine import Meter
from tests.bench.rows import Row
from tests.bench.scale import CONSUMERS, WINDOW_WIDE
from tests.bench.scenario_publish import keep_full
from tests.bench.scenario_work import Bench
from tests.bench.world import Server, World, client_args, close, connect, until

EMPTY, FULL = "bench-empty", "bench-full"
SLICES = 4
"""Both queues are measured in turns, so that other load on the machine disturbs them alike."""


async def backlog(world: World, *, encoding: Encoding) -> Row:
    wanted = world.scale.backlog
    with world.server() as server:
        server.create(EMPTY)
        server.create(FULL)
        empty, full = (Bench(server, encoding=encoding, queue=queue) for queue in (EMPTY, FULL))
        await empty.open(CONSUMERS)
        await _slice(empty, world)
        before_kib = server.process.rss_anon_kib()
        await _fill(server, wanted, encoding)
        added_mib = (server.process.rss_anon_kib() - before_kib) / 1024
        await full.open(CONSUMERS)
        await _slice(full, world)
        meter = Meter(server.process)
        rates = await _measure(world, empty, full)
        figures = meter.figures()
        added_later_mib = (server.process.rss_anon_kib() - before_kib) / 1024
        for consumer in empty.consumers:
            consumer.resume()
        await empty.finish()
        await _settle(full, wanted)
        started = _restart(world, server, wanted)
    return {
        "rate": round(rates[1]),
        "unit": "msg/s",
        **figures,
        "rate_without": round(rates[0]),
        "slower_pct": round(100 * (1 - rates[1] / rates[0]), 1),
        "added_mib": round(added_mib, 1),
        "added_delivering_mib": round(added_later_mib, 1),
        **started,
        "lost": 0,
        "duplicates": 0,
    }


async def _fill(server: Server, wanted: int, encoding: Encoding) -> None:
    [publisher] = await connect(lambda: Publisher(*client_args(CODECS[encoding], server), queue=FULL))
    keep_full(publisher, WINDOW_WIDE, lambda: wanted - publisher.sent)()
    await until(lambda: publisher.acked == wanted, [publisher], lambda: f"{publisher.acked} of {wanted} stored")
    close([publisher])


async def _measure(world: World, empty: Bench, full: Bench) -> list[float]:
    """Messages per second through the empty queue, and through the one with the backlog."""
    counts, seconds = [0, 0], [0.0, 0.0]
    for turn in range(2 * SLICES):
        count, took = await _slice((empty, full)[turn % 2], world)
        counts[turn % 2] += count
        seconds[turn % 2] += took
    return [count / took for count, took in zip(counts, seconds, strict=True)]


async def _slice(bench: Bench, world: World) -> tuple[int, float]:
    """Producer and consumers work for a moment, at the same rate, so that a backlog keeps its size."""
    loop = asyncio.get_running_loop()
    began, count = loop.time(), bench.received.count
    bench.begin()
    await asyncio.sleep(world.scale.seconds / SLICES)
    taken, took = bench.received.count - count, loop.time() - began
    bench.halt()
    return taken, took


async def _settle(full: Bench, wanted: int) -> None:
    """Every message of the queue was either received once or is still waiting."""
    for consumer in full.consumers:
        consumer.close()
    publisher, received = full.publisher, full.received
    await until(lambda: publisher.unconfirmed == 0, [publisher], lambda: f"{publisher.unconfirmed} unconfirmed")
    stats = full.stats()
    kept = stats["ready"] + stats["in_flight"] + stats["acked_total"]
    if received.duplicates or kept != wanted + publisher.sent:
        raise ClientFailed(f"{wanted} + {publisher.sent} stored, {received.count} received, the queue reports {stats}")
    close([publisher])


def _restart(world: World, server: Server, wanted: int) -> Row:
    """The duration of a start with the messages in the folder, and of the first start, without any."""
    ready = server.stats(FULL)["ready"]
    server.process.stop()
    stored_s = world.start(server.process)
    if server.stats(FULL)["ready"] < ready:
        raise ClientFailed(f"{ready} of {wanted} messages waited, {server.stats(FULL)} after the restart")
    return {
        "start_stored_s": round(stored_s, 2),
        "start_empty_s": round(server.start_s, 2),
        "rss_anon_started_mib": server.rss_anon_mib(),
    }
