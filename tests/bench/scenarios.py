"""The scenarios by name, in the order in which a round runs them, each with the goal that we hold ourselves to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Literal, NamedTuple

from tests.bench.feeds import keyed
from tests.bench.rows import Row
from tests.bench.scale import PER_FRAME_SMALL, WINDOW_WIDE
from tests.bench.scenario_against import against
from tests.bench.scenario_backlog import backlog
from tests.bench.scenario_duties import ALL, FRONT, Duties, Open, duty
from tests.bench.scenario_duties import publish as publish_duty
from tests.bench.scenario_duties import publish_narrow as publish_duty_narrow
from tests.bench.scenario_duties import work as work_duty
from tests.bench.scenario_fairness import USUAL_RATE_HIGH, fairness, fairness_backlog
from tests.bench.scenario_fanout import fanout, fanout_latency
from tests.bench.scenario_idle import idle
from tests.bench.scenario_pairs import KEYS, dedupe, priority, sorted_by, strict, strict_hot
from tests.bench.scenario_publish import http_publish, publish
from tests.bench.scenario_scheduled import scheduled, scheduled_exactness
from tests.bench.scenario_work import latency, work
from tests.bench.sides import Way
from tests.bench.turns import OpenSide
from tests.bench.world import World

Table = Literal[
    "rates",
    "latency",
    "fanout",
    "idle",
    "backlog",
    "settings",
    "duties",
    "scheduled",
    "exactness",
    "fairness",
    "against",
    "cluster",
    "storm",
]


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

PLAIN: dict[str, Scenario] = {
    "publish": Scenario(
        "rates", "publish, window 256, 100 per frame, MessagePack", partial(publish, encoding="msgpack"), _DURABLE
    ),
    "publish-json": Scenario("rates", "the same in JSON", partial(publish, encoding="json"), _DURABLE),
    "publish-32": Scenario(
        "rates",
        "publish, window 256, 32 per frame, MessagePack",
        partial(publish, encoding="msgpack", per_frame=PER_FRAME_SMALL),
        _DURABLE,
    ),
    "publish-32-json": Scenario(
        "rates", "the same in JSON", partial(publish, encoding="json", per_frame=PER_FRAME_SMALL), _DURABLE
    ),
    "publish-1024": Scenario(
        "rates",
        "publish, window 1,024, 100 per frame, MessagePack",
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
        "publish, window 256, one message per frame, MessagePack",
        partial(publish, encoding="msgpack", per_frame=1),
        _SINGLE,
    ),
    "single-work": Scenario(
        "rates",
        "work queue, one message per publish frame and per ack frame, MessagePack",
        partial(work, encoding="msgpack", per_frame=1, ack_singly=True),
        _SINGLE,
    ),
    "http-publish": Scenario(
        "rates", "HTTP publish, one message per request, 64 connections", http_publish, (_least("rate", 10_000),)
    ),
    "latency": Scenario(
        "latency",
        "1,000 per second, publish → received, MessagePack",
        partial(latency, encoding="msgpack"),
        (_most("p50_ms", 0.6), _most("p99_ms", 2.0)),
    ),
    "fanout": Scenario(
        "fanout",
        "saturated, at most 32 messages not yet received by all readers, MessagePack",
        partial(fanout, encoding="msgpack"),
        (_least("rate", 300_000),),
    ),
    "fanout-latency": Scenario(
        "fanout", "20 messages per second, MessagePack", partial(fanout_latency, encoding="msgpack")
    ),
    "idle": Scenario(
        "idle",
        "half read a stream, half consume from a work queue, JSON",
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


CLUSTER: dict[str, Scenario] = {
    "cluster-publish": Scenario(
        "cluster",
        "publish, window 256, 100 per frame, MessagePack",
        partial(publish, encoding="msgpack", served=World.cluster),
        (_least("rate", 40_000),),
    ),
    "cluster-single": Scenario(
        "cluster",
        "publish, window 256, one message per frame, MessagePack",
        partial(publish, encoding="msgpack", per_frame=1, served=World.cluster),
    ),
    "cluster-work": Scenario(
        "cluster",
        "work queue, 4 consumers, every message acked, MessagePack",
        partial(work, encoding="msgpack", served=World.cluster),
        (_least("rate", 20_000),),
    ),
    "cluster-strict": Scenario(
        "cluster",
        "the same in strict order of 1,000 keys, MessagePack",
        partial(work, encoding="msgpack", served=World.cluster, feed=partial(keyed, KEYS), ordering="strict"),
    ),
    "cluster-latency": Scenario(
        "cluster",
        "1,000 per second, publish → received, MessagePack",
        partial(latency, encoding="msgpack", served=World.cluster),
        (_most("p50_ms", 2.0),),
    ),
}
"""Three backends over etcd: what is confirmed lies on two disks at least. They and the gateway share the cores."""


def _pairs(says: str, run: Callable[[World], Awaitable[Row]], *goals: Goal) -> Scenario:
    return Scenario("settings", says, run, goals)


SEMANTICS: dict[str, Scenario] = {
    "strict-memory": _pairs(
        "work queue in strict order of 1,000 keys, leases in memory, compared with best-effort order",
        partial(strict, lease_mode="memory"),
        _least("kept_pct", 60),
    ),
    "strict-replicated": _pairs(
        "the same with replicated leases, compared with best-effort order",
        partial(strict, lease_mode="replicated"),
        _least("kept_pct", 40),
    ),
    "strict-hot": _pairs(
        "the other keys while one key with half of all messages is stuck, compared with no key stuck",
        strict_hot,
        _least("kept_pct", 90),
    ),
    "dedupe": _pairs(
        "publish with ids, `dedupe: id`, 2,000,000 ids in the window, compared with no `dedupe`",
        dedupe,
        _least("kept_pct", 65),
    ),
    "priority": _pairs("work queue, 3 random priorities, compared with none", priority),
    "sorted-producer": _pairs(
        "work queue, `sequencing: producer`, compared with `arrival` for the same messages",
        partial(sorted_by, sequencing="producer"),
    ),
    "sorted-clock": _pairs(
        "work queue, `sequencing: clock`, a window of 100 ms, compared with `arrival` for the same messages",
        partial(sorted_by, sequencing="clock"),
    ),
    "scheduled": Scenario(
        "scheduled",
        "1,000,000 messages, the 100 of each frame due at the same time",
        scheduled,
        (
            _most("added_mib", 100),
            _least("rate", 50_000),
        ),
    ),
    "scheduled-single": Scenario(
        "scheduled",
        "200,000 messages, each due at a different millisecond",
        partial(scheduled, is_each=True),
        (_most("added_mib", 100),),
    ),
    "scheduled-exactness": Scenario(
        "exactness",
        "100 single messages per second, each due at a random time",
        scheduled_exactness,
        (_most("p99_ms", 50),),
    ),
    "fairness": Scenario(
        "fairness",
        "1,000 per second, while another queue receives 2,000 per second instead of 200",
        fairness,
        (_most("p99_more_pct", 50),),
    ),
    "fairness-high": Scenario(
        "fairness",
        "1,000 per second, while another queue receives 10,000 per second instead of 1,000",
        partial(fairness, usual_rate=USUAL_RATE_HIGH),
        (_most("p99_more_pct", 50),),
    ),
    "fairness-backlog": Scenario(
        "fairness",
        "1,000 per second, while consumers of another queue receive 10,000 per second instead of 1,000 from a backlog",
        fairness_backlog,
        (_most("p99_more_pct", 50),),
    ),
}
"""What settings cost, and what one queue may do to another."""


def _duty(says: str, open_side: Open, duties: Duties, *goals: Goal) -> Scenario:
    return Scenario("duties", says, partial(duty, open_side=open_side, duties=duties), goals)


DUTIES: dict[str, Scenario] = {
    "duty-encryption": _duty("publish, encrypted at rest", publish_duty, Duties(is_encrypted=True)),
    "duty-encryption-work": _duty("work queue, encrypted at rest", work_duty, Duties(is_encrypted=True)),
    "duty-limits": _duty("publish, four rules counted in Redis", publish_duty, Duties(is_limited=True)),
    "duty-keys": _duty("publish, an idempotency key per frame", publish_duty, Duties(has_keys=True)),
    "duty-tls": _duty("publish, TLS at the listener", publish_duty, Duties(is_tls=True)),
    "duty-front": _duty("publish, encryption, rules and a JWT", publish_duty, FRONT, _least("kept_pct", 65)),
    "duty-front-work": _duty("work queue, encryption, rules and a JWT", work_duty, FRONT, _least("kept_pct", 65)),
    "duty-all": _duty("publish, the same plus a key per frame and TLS", publish_duty, ALL, _least("kept_pct", 65)),
    "duty-all-256": _duty("publish, the same with 256 unconfirmed", publish_duty_narrow, ALL, _least("kept_pct", 65)),
    "duty-all-work": _duty("work queue, the same plus a key per frame and TLS", work_duty, ALL, _least("kept_pct", 65)),
}
"""What the duties of the front end cost, 100 messages a frame."""


def _against(says: str, open_side: OpenSide) -> Scenario:
    return Scenario("against", says, partial(against, open_side=open_side), (_least("kept_pct", 90),))


AGAINST: dict[str, Scenario] = {
    "against-publish": _against("publish, 100 per frame", Way().publish),
    "against-single-publish": _against("publish, one message per frame", Way(per_frame=1).publish),
    "against-work": _against("work queue, 100 per frame", Way().work),
    "against-single-work": _against(
        "work queue, one message per publish frame and per ack frame", Way(per_frame=1, ack_singly=True).work
    ),
    "against-http-publish": _against("HTTP publish, one message per request", Way().http),
}
"""What `--against` runs instead."""


async def _by_test(world: World) -> Row:
    raise NotImplementedError("`make storm` measures it: tests/storm")


STORM: dict[str, Scenario] = {
    "storm-cut": Scenario("storm", "all connections are cut", _by_test, (_most("p99_ms", 1000),)),
    "storm-killed": Scenario("storm", "the server is killed and started again", _by_test, (_most("p99_ms", 1000),)),
}
"""What `make storm` writes down: how single publishes over HTTP fare while everybody comes back."""


SCENARIOS = PLAIN | SEMANTICS | DUTIES | CLUSTER
KNOWN = SCENARIOS | AGAINST | STORM
ONCE = frozenset(SEMANTICS | DUTIES | AGAINST | STORM)
"""One round of them is enough: they measure in pairs that lie close together, or all who come back."""
PARTS = {"plain": list(PLAIN), "semantics": list(SEMANTICS), "duties": list(DUTIES), "cluster": list(CLUSTER)}


def chosen(names: list[str]) -> list[str]:
    """The scenarios that were asked for, in their order; a name stands for all that begin with it and a hyphen, too."""
    unknown = [name for name in names if not any(_stands_for(name, each) for each in SCENARIOS)]
    if unknown:
        raise ValueError(f"no scenario {unknown[0]!r}; there are {', '.join(SCENARIOS)}")
    return [each for each in SCENARIOS if not names or any(_stands_for(name, each) for name in names)]


def compared(names: list[str]) -> list[str]:
    """What is held against another checkout: plain queues, or the duties that were asked for."""
    found = chosen(names) if names else list(AGAINST)
    if others := [name for name in found if name not in AGAINST | DUTIES]:
        raise ValueError(f"{others[0]} is not run with --against; name scenarios of duties, or none for plain queues")
    return found


def _stands_for(name: str, scenario: str) -> bool:
    return scenario == name or scenario.startswith(name + "-")
