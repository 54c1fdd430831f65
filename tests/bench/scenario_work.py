"""The work queue end to end: one producer, competing consumers, every message acked; and latency at a steady rate."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from tests.bench.clients import ClientFailed, Consumer, Publisher, age_ns
from tests.bench.codec import CODECS, AnyArrival, Codec, Encoding
from tests.bench.feeds import Feed, FeedPublisher
from tests.bench.machine import Meter
from tests.bench.rows import Row, percentiles_ms
from tests.bench.scale import CONSUMERS, CREDIT, LATENCY_RATE, PER_FRAME, WINDOW, WORK_BACKLOG_MAX
from tests.bench.scenario_publish import QUEUE, keep_full
from tests.bench.world import Served, Server, World, check, client_args, close, connect, until


class Received:
    """What consumers received: how many messages, which ones, and how old each was."""

    def __init__(self, *, timed: bool = False) -> None:
        self.count = 0
        self.latencies_ns: list[int] = []
        self._seqs: set[int] = set()
        self._timed = timed
        self.on_messages: Callable[[], None] = _nothing

    @property
    def duplicates(self) -> int:
        return self.count - len(self._seqs)

    def add(self, frame: AnyArrival) -> None:
        messages = frame.messages
        self.count += len(messages)
        self._seqs.update([message.seq for message in messages])
        if self._timed:
            now_ns = time.monotonic_ns()
            self.latencies_ns.extend([age_ns(message.body, now_ns) for message in messages])
        self.on_messages()


def make_publisher(
    codec: Codec, port: int, token: str, queue: str, per_frame: int = PER_FRAME, feed: Feed | None = None
) -> Publisher:
    """A publisher of plain bodies, or of what the feed gives."""
    if feed is None:
        return Publisher(codec, port, token, queue=queue, per_frame=per_frame)
    return FeedPublisher(codec, port, token, queue=queue, feed=feed, per_frame=per_frame)


class Bench:
    """A producer and consumers of one queue; at the end it checks that each message arrived once."""

    def __init__(
        self,
        server: Server,
        *,
        encoding: Encoding,
        per_frame: int = PER_FRAME,
        ack_singly: bool = False,
        timed: bool = False,
        queue: str = QUEUE,
        feed: Feed | None = None,
        ahead_max: int = WORK_BACKLOG_MAX,
        make: Callable[[], Publisher] | None = None,
    ) -> None:
        """`make`: creates a producer with its own way of building frames."""
        self.server = server
        self.queue = queue
        self.received = Received(timed=timed)
        self._encoding: Encoding = encoding
        self._per_frame = per_frame
        self._ack_singly = ack_singly
        self._make = make
        self._feed = feed
        self._ahead_max = ahead_max
        self.consumers: list[Consumer] = []
        self._is_holding_back = False

    async def open(self, consumers: int) -> None:
        common = client_args(CODECS[self._encoding], self.server)
        tls = self.server.process.tls
        make = self._make or (lambda: make_publisher(*common, self.queue, self._per_frame, self._feed))
        [self.publisher] = await connect(make, tls=tls)
        self.consumers = await connect(
            lambda: Consumer(
                *common, queue=self.queue, credit=CREDIT, on_messages=self.received.add, ack_singly=self._ack_singly
            ),
            consumers,
            tls=tls,
        )

    def begin(self) -> None:
        """Keeps the producer's window full, unless it is too far ahead of the consumers."""
        publisher, received = self.publisher, self.received
        fill = keep_full(publisher, WINDOW, lambda: self._ahead_max - (publisher.sent - received.count))

        def go_on() -> None:
            self._hold_back()
            fill()

        received.on_messages = publisher.on_acked = go_on
        for consumer in self.consumers:
            consumer.resume()
        fill()

    def _hold_back(self) -> None:
        """Keeps consumers of a stored backlog from outrunning the producer, so that both have one rate."""
        is_ahead = self.received.count - self.publisher.sent > self._ahead_max
        if is_ahead != self._is_holding_back:
            self._is_holding_back = is_ahead
            for consumer in self.consumers:
                (consumer.pause if is_ahead else consumer.resume)()

    def pause(self) -> None:
        """Stops the producer; the consumers continue."""
        self.publisher.on_acked = None
        self.received.on_messages = _nothing

    def halt(self) -> None:
        """Stops both; `begin` continues with the messages that consumers hold by then."""
        self.pause()
        self._is_holding_back = False
        for consumer in self.consumers:
            consumer.pause()

    @property
    def done(self) -> int:
        return self.received.count

    async def rest(self) -> None:
        """Stops the producer, and waits until the consumers have everything."""
        self.pause()
        publisher, received = self.publisher, self.received
        await until(
            lambda: publisher.unconfirmed == 0 and received.count >= publisher.sent,
            [publisher, *self.consumers],
            lambda: f"{publisher.sent} sent, {publisher.acked} confirmed, {received.count} received",
        )

    async def finish(self) -> Row:
        """Waits until every message has arrived and its ack is on disk. Raises if one is missing or arrived twice."""
        publisher, received = self.publisher, self.received
        clients = [publisher, *self.consumers]
        await self.rest()
        await until(lambda: self.stats()["acked_total"] >= publisher.sent, clients, lambda: f"acks: {self.stats()}")
        stats = self.stats()
        close(clients)
        if received.duplicates or stats["ready"] or stats["in_flight"] or stats["acked_total"] != publisher.sent:
            raise ClientFailed(f"{publisher.sent} sent, {received.duplicates} duplicates, the queue reports {stats}")
        return {"lost": publisher.sent - received.count, "duplicates": received.duplicates}

    def stats(self) -> dict[str, int]:
        return self.server.stats(self.queue)


def _nothing() -> None:
    """Does nothing: nobody waits for messages."""


async def work(
    world: World,
    *,
    encoding: Encoding,
    per_frame: int = PER_FRAME,
    ack_singly: bool = False,
    served: Served = World.server,
    feed: Callable[[], Feed] | None = None,
    **config: Any,
) -> Row:
    """`config`: settings of the queue."""
    scale = world.scale
    with served(world) as server:
        server.create(QUEUE, **config)
        bench = Bench(server, encoding=encoding, per_frame=per_frame, ack_singly=ack_singly, feed=feed and feed())
        await bench.open(CONSUMERS)
        bench.begin()
        await asyncio.sleep(scale.warmup_seconds)
        meter, began = Meter(server.process), bench.received.count
        await asyncio.sleep(scale.seconds)
        count = bench.received.count - began
        figures = meter.figures(count)
        rss_anon_mib = server.rss_anon_mib()
        bench.pause()
        ended = await bench.finish()
    return {"rate": round(count / figures["wall_s"]), "unit": "msg/s", **figures, "rss_anon_mib": rss_anon_mib, **ended}


async def latency(world: World, *, encoding: Encoding, served: Served = World.server) -> Row:
    """Time from publish to receipt at a steady rate that does not wait for the server."""
    scale = world.scale
    with served(world) as server:
        server.create(QUEUE)
        bench = Bench(server, encoding=encoding, timed=True)
        await bench.open(1)
        await send_paced(bench.publisher, LATENCY_RATE, scale.warmup_seconds)
        bench.received.latencies_ns.clear()
        meter = Meter(server.process)
        sent = await send_paced(bench.publisher, LATENCY_RATE, scale.seconds)
        figures = meter.figures(sent)
        rss_anon_mib = server.rss_anon_mib()
        check([bench.publisher, *bench.consumers])
        ended = await bench.finish()
        measured = percentiles_ms(bench.received.latencies_ns)
    return {
        "rate": round(sent / scale.seconds),
        "unit": "msg/s",
        **figures,
        "rss_anon_mib": rss_anon_mib,
        **measured,
        **ended,
    }


async def send_paced(publisher: Publisher, rate: int, seconds: float) -> int:
    """Sends stamped messages at `rate` per second whatever comes back; the stamp is the time of sending."""
    began, sent = time.monotonic(), 0
    while (passed := time.monotonic() - began) < seconds:
        for _ in range(int(passed * rate) + 1 - sent):
            publisher.send_stamped()
            sent += 1
        await asyncio.sleep(0.001)
    return sent
