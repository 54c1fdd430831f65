"""Scheduled messages: the memory that a million of them takes, how fast due ones are taken, and how punctually."""

from __future__ import annotations

import asyncio
import random
import time

from tests.bench.clients import ClientFailed, Consumer, age_ns
from tests.bench.codec import CODECS, AnyArrival
from tests.bench.feeds import FeedPublisher, due_in, due_within
from tests.bench.machine import Meter
from tests.bench.rows import Row, percentiles_ms
from tests.bench.scale import CONSUMERS, CREDIT, PER_FRAME, WINDOW_WIDE
from tests.bench.scenario_publish import QUEUE, keep_full
from tests.bench.scenario_work import Received
from tests.bench.world import Server, World, check, client_args, close, connect, until

TAKE_SECONDS_MAX = 240.0
"""Messages with their own times are taken one by one."""
STORED_PER_S_MIN = {False: 40_000, True: 15_000}
"""The slowest acceptable rate of storing them, so that all are stored before the first is due."""
REST_S = 5
"""Time before the first is due, beyond the time to store them; a short run may coincide with a pause of the machine."""
SINGLE_SHARE = 5
"""Messages that each have their own time need as many rows, so there are fewer of them."""
SPREAD_MESSAGES_PER_MS = 200
"""They become due faster than any consumer takes them."""
DUE_MESSAGES_PER_S = 250
"""Light load, for four times as long as other measurements."""
DUE_SPREAD = 2.5
SOON_MS = 500
"""All of them are stored within this time."""
EARLY_MS_MAX = 1.0
"""The two clocks are read one after the other."""
_MEMORY_LOOK_S = 0.1


async def scheduled(world: World, *, is_each: bool = False) -> Row:
    """Consumers wait until all have arrived. `is_each`: one due time per message, instead of per frame."""
    wanted = world.scale.backlog // (SINGLE_SHARE if is_each else 1)
    with world.server() as server:
        server.create(QUEUE)
        received = Received()
        common = client_args(CODECS["msgpack"], server)
        consumers = await connect(
            lambda: Consumer(*common, queue=QUEUE, credit=CREDIT, on_messages=received.add), CONSUMERS
        )
        before_mib = server.rss_anon_mib()
        due_s = time.time() + REST_S + wanted / STORED_PER_S_MIN[is_each]
        meter = Meter(server.process)
        await _store(server, wanted, due_s, per_time=1 if is_each else PER_FRAME)
        stored = meter.figures(wanted)
        added_mib = server.rss_anon_mib() - before_mib
        if received.count or time.time() >= due_s:
            raise ClientFailed(f"storing {wanted} messages took {stored['wall_s']} s, longer than their delay allows")
        await asyncio.sleep(due_s - time.time())
        meter.start()
        peak_mib = await _take(server, received, wanted, consumers)
        figures, took_s = meter.figures(wanted), time.time() - due_s
        stats = server.stats(QUEUE)
        close(consumers)
    if received.duplicates or stats["delayed"] or stats["ready"]:
        raise ClientFailed(f"{wanted} scheduled, {received.count} received, the queue reports {stats}")
    return {
        "rate": round(wanted / took_s),
        "unit": "msg/s",
        **figures,
        "rate_stored": round(wanted / stored["wall_s"]),
        "cpu_s_per_100k_stored": stored["cpu_s_per_100k"],
        "added_mib": round(added_mib, 1),
        "added_delivering_mib": round(peak_mib - before_mib, 1),
        "lost": wanted - received.count,
        "duplicates": received.duplicates,
    }


async def _store(server: Server, wanted: int, due_s: float, *, per_time: int) -> None:
    feed = due_within(due_s, max(1, wanted // SPREAD_MESSAGES_PER_MS), per_time=per_time)
    [publisher] = await connect(lambda: FeedPublisher(*client_args(CODECS["msgpack"], server), queue=QUEUE, feed=feed))
    keep_full(publisher, WINDOW_WIDE, lambda: wanted - publisher.sent)()
    await until(
        lambda: publisher.acked == wanted,
        [publisher],
        lambda: f"{publisher.acked} of {wanted} stored",
        seconds_max=60.0,
    )
    close([publisher])


async def _take(server: Server, received: Received, wanted: int, consumers: list[Consumer]) -> float:
    """Returns the server's peak memory meanwhile."""
    peak_mib, next_look = 0.0, 0.0

    def is_done() -> bool:
        nonlocal peak_mib, next_look
        if time.monotonic() >= next_look:
            next_look = time.monotonic() + _MEMORY_LOOK_S
            peak_mib = max(peak_mib, server.rss_anon_mib())
        return received.count >= wanted

    await until(is_done, consumers, lambda: f"{received.count} of {wanted} received", seconds_max=TAKE_SECONDS_MAX)
    return peak_mib


async def scheduled_exactness(world: World) -> Row:
    """Single messages with random due times: how late each arrives."""
    span_s = DUE_SPREAD * world.scale.seconds
    count = max(10, int(DUE_MESSAGES_PER_S * world.scale.seconds))
    chance = random.Random(count)
    with world.server() as server:
        server.create(QUEUE)
        received = Received()
        lags_ns: list[int] = []

        def note(frame: AnyArrival) -> None:
            now_ns = time.monotonic_ns()
            lags_ns.extend([age_ns(message.body, now_ns) for message in frame.messages])
            received.add(frame)

        common = client_args(CODECS["msgpack"], server)
        [consumer] = await connect(lambda: Consumer(*common, queue=QUEUE, credit=CREDIT, on_messages=note))
        [publisher] = await connect(lambda: FeedPublisher(*common, queue=QUEUE, feed=due_in(0), per_frame=1))
        meter = Meter(server.process)
        for _ in range(count):
            publisher.feed = due_in(SOON_MS + chance.randrange(int(1000 * span_s)))
            publisher.send(1)
        await asyncio.sleep(span_s)
        clients = [publisher, consumer]
        await until(lambda: received.count >= count, clients, lambda: f"{received.count} of {count} received")
        figures = meter.figures(count)
        check(clients)
        close(clients)
    if received.duplicates or min(lags_ns) < -EARLY_MS_MAX * 1e6:
        raise ClientFailed(f"{received.duplicates} duplicates, the earliest {-min(lags_ns) / 1e6:.2f} ms too early")
    return {
        "rate": round(count / figures["wall_s"]),
        "unit": "msg/s",
        **figures,
        **percentiles_ms(lags_ns),
        "latest_ms": round(max(lags_ns) / 1e6, 3),
        "lost": count - received.count,
        "duplicates": received.duplicates,
    }
