"""A queue next to one that gets ten times its usual load: how much longer messages take from publish to consumer."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from tests.bench.clients import ClientFailed, Consumer, Publisher
from tests.bench.codec import CODECS, AnyArrival
from tests.bench.machine import Meter
from tests.bench.rows import Row, percentiles_ms
from tests.bench.scale import CONSUMERS, CREDIT, LATENCY_RATE, WINDOW_WIDE
from tests.bench.scenario_publish import keep_full
from tests.bench.scenario_work import Bench, Received, send_paced
from tests.bench.turns import PAIRS, TURNS_PER_MEASUREMENT
from tests.bench.world import Server, World, check, client_args, close, connect, until

CALM, BUSY = "bench-calm", "bench-busy"
CALM_RATE = LATENCY_RATE
USUAL_RATE, USUAL_RATE_HIGH = CALM_RATE // 5, CALM_RATE
"""The other queue's usual rates; at ten times the high one, the server needs most of its CPU time."""
TIMES = 10
SETTLE_S = 0.1
"""Pause between turns, so that the remains of one do not count for the next."""
BACKLOG_SHARE = 5
_LOOK_S = 0.001

Press = Callable[[float, float], Awaitable[None]]
"""Keeps the other queue busy: (messages per second, duration in seconds)."""


async def fairness(world: World, usual_rate: float = USUAL_RATE) -> Row:
    """The other queue gets ten times its load, also one message per frame."""
    with world.server() as server:
        calm, busy = await _open(server, CALM, timed=True), await _open(server, BUSY)

        async def press(rate: float, seconds: float) -> None:
            await send_paced(busy.publisher, rate, seconds)

        row = await _pairs(world, calm, press, usual_rate)
        ended = [await bench.finish() for bench in (calm, busy)]
    return row | {what: ended[0][what] + ended[1][what] for what in ("lost", "duplicates")}


async def fairness_backlog(world: World) -> Row:
    """The other queue has a backlog, which its consumers drain at ten times the usual rate."""
    wanted = world.scale.backlog // BACKLOG_SHARE
    with world.server() as server:
        calm = await _open(server, CALM, timed=True)
        server.create(BUSY)
        await _fill(server, wanted)
        drain = await Drain.open(server)
        row = await _pairs(world, calm, drain.press, USUAL_RATE_HIGH)
        ended = await calm.finish()
        await drain.finish(wanted)
    return row | ended


class _SlowConsumer(Consumer):
    """Holds what it receives until told to continue."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._waiting: deque[AnyArrival] = deque()

    def arrived(self, frame: AnyArrival) -> None:
        if frame.type == "deliver":
            self._waiting.append(frame)

    def go_on(self) -> None:
        if self._waiting:
            super().arrived(self._waiting.popleft())


class Drain:
    """Consumers that work at a given rate, and so drain waiting messages at that rate."""

    def __init__(self, server: Server) -> None:
        self.received = Received()
        self.consumers: list[_SlowConsumer] = []
        self._server = server

    @classmethod
    async def open(cls, server: Server) -> Drain:
        drain, common = cls(server), client_args(CODECS["msgpack"], server)
        drain.consumers = await connect(
            lambda: _SlowConsumer(*common, queue=BUSY, credit=CREDIT, on_messages=drain.received.add), CONSUMERS
        )
        return drain

    async def press(self, rate: float, seconds: float) -> None:
        began, start = time.monotonic(), self.received.count
        while (passed := time.monotonic() - began) < seconds:
            wanted = start + passed * rate
            for consumer in self.consumers:
                if self.received.count < wanted:
                    consumer.go_on()
            await asyncio.sleep(_LOOK_S)
        check(self.consumers)

    async def finish(self, wanted: int) -> None:
        """Every message of the queue was either received once or is still waiting."""
        acked = self.received.count
        await until(
            lambda: self._server.stats(BUSY)["acked_total"] >= acked, self.consumers, lambda: f"{acked} acks sent"
        )
        stats = self._server.stats(BUSY)
        close(self.consumers)
        if self.received.duplicates or stats["ready"] + stats["in_flight"] != wanted - acked:
            raise ClientFailed(f"{wanted} stored, {acked} received and acked, the queue reports {stats}")


async def _open(server: Server, queue: str, *, timed: bool = False) -> Bench:
    server.create(queue)
    bench = Bench(server, encoding="msgpack", timed=timed, queue=queue)
    await bench.open(1 if timed else CONSUMERS)
    return bench


async def _fill(server: Server, wanted: int) -> None:
    [publisher] = await connect(lambda: Publisher(*client_args(CODECS["msgpack"], server), queue=BUSY))
    keep_full(publisher, WINDOW_WIDE, lambda: wanted - publisher.sent)()
    await until(lambda: publisher.acked == wanted, [publisher], lambda: f"{publisher.acked} of {wanted} stored")
    close([publisher])


async def _pairs(world: World, calm: Bench, press: Press, usual_rate: float) -> Row:
    """The calm queue's latencies while the other one has its usual load, and ten times that, in turns."""
    seconds = world.scale.seconds / TURNS_PER_MEASUREMENT
    await asyncio.gather(send_paced(calm.publisher, CALM_RATE, seconds / 2), press(TIMES * usual_rate, seconds / 2))
    found: dict[bool, list[list[int]]] = {False: [], True: []}
    meter, sent = Meter(calm.server.process), 0
    for number in range(PAIRS):
        for is_busy in (False, True) if number % 2 == 0 else (True, False):
            await asyncio.sleep(min(SETTLE_S, seconds))
            latencies_ns: list[int] = []
            calm.received.latencies_ns = latencies_ns
            rate = TIMES * usual_rate if is_busy else usual_rate
            work = [send_paced(calm.publisher, CALM_RATE, seconds), press(rate, seconds)]
            sent += (await asyncio.gather(*work))[0] or 0
            await calm.rest()
            found[is_busy].append(latencies_ns)
    return _figures(found[False], found[True]) | {"unit": "msg/s", **meter.figures(), "rate": CALM_RATE}


def _figures(usual: list[list[int]], beside: list[list[int]]) -> Row:
    """One ratio per pair; the percentiles are medians over the turns."""
    before, after = ([percentiles_ms(latencies_ns) for latencies_ns in turns] for turns in (usual, beside))
    found: Row = {"p99_more_pct": [_more_pct(b["p99_ms"], a["p99_ms"]) for a, b in zip(before, after, strict=True)]}
    for name in ("p50_ms", "p99_ms"):
        found[f"{name}_usual"] = statistics.median(turn[name] for turn in before)
        found[name] = statistics.median(turn[name] for turn in after)
    return found


def _more_pct(value: float, than: float) -> float:
    return round(100 * (value / than - 1), 1)
