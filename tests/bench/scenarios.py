"""The scenarios by name, in the order in which a round runs them, each with the goal that we hold ourselves to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Literal, NamedTuple

from tests.bench.rows import Row
from tests.bench.scale import PER_FRAME_SMALL, WINDOW_WIDE
from tests.bench.scenario_backlog import backlog
from tests.bench.scenario_fanout import fanout, fanout_latency
from tests.bench.scenario_idle import idle
from tests.bench.scenario_publish import http_publish, publish
from tests.bench.scenario_work import latency, work
from tests.bench.world import World

Table = Literal["rates", "latency", "fanout", "idle", "backlog"]


class Goal(NamedTuple):
    """`figure` should be at least (or at most) `bound`."""

    figure: str
    is_least: bool
    bound: float

    def is_reached(self, value: float) -> bool:
        return value >= self.bound if self.is_least else value <= self.bound


class Scenario(NamedTuple):
    table: Table
    says: str
    run: Callable[[World], Awaitable[Row]]
    goals: tuple[Goal, ...] = ()


def _least(figure: str, bound: float) -> Goal:
    return Goal(figure, True, bound)


def _most(figure: str, bound: float) -> Goal:
    return Goal(figure, False, bound)


_DURABLE = (_least("rate", 200_000),)
_WIDE = (_least("rate", 302_000),)
_WORK = (_least("rate", 120_000),)
_SINGLE = (_least("rate", 30_000),)

SCENARIOS: dict[str, Scenario] = {
    "publish": Scenario(
        "rates", "publish, window 256, 100 a frame, MessagePack", partial(publish, encoding="msgpack"), _DURABLE
    ),
    "publish-json": Scenario("rates", "the same in JSON", partial(publish, encoding="json"), _DURABLE),
    "publish-32": Scenario(
        "rates",
        "publish, window 256, 32 a frame, MessagePack",
        partial(publish, encoding="msgpack", per_frame=PER_FRAME_SMALL),
        _DURABLE,
    ),
    "publish-32-json": Scenario(
        "rates", "the same in JSON", partial(publish, encoding="json", per_frame=PER_FRAME_SMALL), _DURABLE
    ),
    "publish-1024": Scenario(
        "rates",
        "publish, window 1,024, 100 a frame, MessagePack",
        partial(publish, encoding="msgpack", window=WINDOW_WIDE),
        _WIDE,
    ),
    "publish-1024-json": Scenario(
        "rates", "the same in JSON", partial(publish, encoding="json", window=WINDOW_WIDE), _WIDE
    ),
    "work": Scenario(
        "rates", "work queue, 4 consumers, every message acked, MessagePack", partial(work, encoding="msgpack"), _WORK
    ),
    "work-json": Scenario("rates", "the same in JSON", partial(work, encoding="json"), _WORK),
    "single-publish": Scenario(
        "rates",
        "publish, window 256, one message a frame, MessagePack",
        partial(publish, encoding="msgpack", per_frame=1),
        _SINGLE,
    ),
    "single-work": Scenario(
        "rates",
        "work queue, one message a publish frame and an ack frame a message, MessagePack",
        partial(work, encoding="msgpack", per_frame=1, ack_singly=True),
        _SINGLE,
    ),
    "http-publish": Scenario(
        "rates", "HTTP publish, one message a request, 64 connections", http_publish, (_least("rate", 10_000),)
    ),
    "latency": Scenario(
        "latency",
        "1,000 a second, publish → received, MessagePack",
        partial(latency, encoding="msgpack"),
        (_most("p50_ms", 0.6), _most("p99_ms", 2.0)),
    ),
    "fanout": Scenario(
        "fanout",
        "saturated, at most 32 messages not yet with everybody, MessagePack",
        partial(fanout, encoding="msgpack"),
        (_least("rate", 300_000),),
    ),
    "fanout-latency": Scenario(
        "fanout", "20 messages a second, MessagePack", partial(fanout_latency, encoding="msgpack")
    ),
    "idle": Scenario(
        "idle",
        "half read a stream, half consume a work queue, JSON",
        partial(idle, encoding="json"),
        (_most("kib_per_connection", 20.0),),
    ),
    "backlog": Scenario(
        "backlog",
        "MessagePack",
        partial(backlog, encoding="msgpack"),
        (
            _most("added_mib", 100.0),
            _most("slower_pct", 10.0),
            _most("start_stored_s", 2.0),
            _most("start_empty_s", 1.0),
        ),
    ),
}


def chosen(names: list[str]) -> list[str]:
    """The scenarios that were asked for, in their order; a name stands for all that begin with it and a hyphen, too."""
    unknown = [name for name in names if not any(_stands_for(name, each) for each in SCENARIOS)]
    if unknown:
        raise ValueError(f"no scenario {unknown[0]!r}; there are {', '.join(SCENARIOS)}")
    return [each for each in SCENARIOS if not names or any(_stands_for(name, each) for name in names)]


def _stands_for(name: str, scenario: str) -> bool:
    return scenario == name or scenario.startswith(name + "-")
