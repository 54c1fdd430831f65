"""Every kind of rule fires when what it looks at passes its limit, and is over when that is well again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from gateway.alerts.core.rules import KINDS
from gateway.app import Application
from tests.unit.gateway.conftest import Clock, Person

pytestmark = pytest.mark.anyio

QUEUE = "/v1/queues/orders"
LOOK_MS = 5_000
DAY_MS = 86_400_000


class World:
    """A server with one queue, whose time passes by hand."""

    def __init__(self, app: Application, person: Person, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
        self.app, self.person, self.clock, self.patch = app, person, clock, monkeypatch
        self.told: list[str] = []

    async def look(self, times: int = 1, *, every_ms: int = LOOK_MS) -> None:
        for _ in range(times):
            self.clock.ms += every_ms
            await self.app.gateway.sampler.look()

    async def publish(self, count: int) -> None:
        await self.person.api("POST", f"{QUEUE}/messages", {"messages": [{"body": 1}] * count})

    async def settle(self, count: int, how: str) -> None:
        leased = (await self.person.api("POST", f"{QUEUE}/receive", {"max": count}))["messages"]
        assert len(leased) == count
        await self.person.api("POST", f"{QUEUE}/{how}", {"receipts": [one["receipt"] for one in leased]})

    def count(self, outcome: str, times: int, *, ms: int = 1) -> None:
        meter = self.app.gateway.usage.meter
        for _ in range(times):
            meter.count("default", "k", "orders", "publish", "http", outcome, seconds=ms / 1000)


Step = Callable[[World], Awaitable[None]]


class Case(NamedTuple):
    rule: dict[str, Any]
    worse: Step
    better: Step


async def waits(world: World) -> None:
    await world.publish(8)


async def wait_in_two_queues(world: World) -> None:
    """Neither alone is past the limit."""
    await world.publish(8)
    await world.person.api("POST", "/v1/queues/tried/messages", {"messages": [{"body": 1}] * 8})


async def is_taken(world: World) -> None:
    await world.settle(8, "ack")


async def grows(world: World) -> None:
    for _ in range(20):
        await world.publish(50)
        await world.look()


async def ages(world: World) -> None:
    await world.publish(8)
    world.clock.ms += 60_000


async def dies(world: World) -> None:
    await world.publish(8)
    await world.settle(8, "nack")


async def is_purged(world: World) -> None:
    await world.person.api("POST", f"{QUEUE}.dead/purge", {"confirm": "orders.dead"})


async def comes_back(world: World) -> None:
    await world.person.api("POST", "/v1/queues/tried/messages", {"messages": [{"body": 1}] * 8})
    for _ in range(3):
        leased = (await world.person.api("POST", "/v1/queues/tried/receive", {"max": 8}))["messages"]
        await world.person.api("POST", "/v1/queues/tried/nack", {"receipts": [one["receipt"] for one in leased]})


async def has_a_consumer(world: World) -> None:
    world.app.gateway.store.queue("default", "orders").consumers += 1


async def passes(world: World) -> None:
    await world.look(30)


async def key_ends_soon(world: World) -> None:
    ends = datetime.fromtimestamp((world.clock.ms + 3 * DAY_MS) / 1000, UTC).isoformat().replace("+00:00", "Z")
    await world.person.api("POST", "/v1/keys", {"name": "short", "scopes": ["view:*"], "expires_at": ends})


async def key_is_revoked(world: World) -> None:
    (short,) = [one for one in (await world.person.api("GET", "/v1/keys"))["items"] if one["name"] == "short"]
    await world.person.api("DELETE", f"/v1/keys/{short['id']}")


async def fails(world: World) -> None:
    world.count("internal", 30)


async def is_slow(world: World) -> None:
    world.count("ok", 30, ms=900)


async def serves_on(world: World) -> None:
    world.clock.ms += 7 * 3_600_000
    world.app.gateway.usage.meter.turn()
    world.count("ok", 100)
    await world.look(3, every_ms=20_000)


def process(name: str, bad: float, good: float) -> tuple[Step, Step]:
    """What the process is asked about itself answers so."""

    def answering(value: float) -> Step:
        async def step(world: World) -> None:
            sampler = world.app.gateway.sampler
            if name == "loop_lag":
                world.patch.setattr(sampler, "_lag", SimpleNamespace(worst_seconds=value / 1000))
            elif name == "disk":
                world.patch.setattr(sampler, "_disk_used", lambda: value / 100)
            else:
                most = world.app.gateway.watching.alerts.sources._memory_bytes_max
                world.patch.setattr("gateway.series.sampler.used_bytes", lambda: value / 100 * most)

        return step

    return answering(bad), answering(good)


def certificate(days: int) -> Step:
    async def step(world: World) -> None:
        expires_s = world.clock.ms / 1000 + days * DAY_MS / 1000
        entrance = SimpleNamespace(certificates=SimpleNamespace(expires_s=expires_s))
        world.patch.setattr(world.app.gateway.watching.alerts.sources, "_entrance", entrance)

    return step


def shard(in_sync: list[str], lag: int) -> Step:
    async def step(world: World) -> None:
        replicas = ["a", "b", "c"]
        one = SimpleNamespace(
            name="0", leader="a", wanted=replicas, replicas=replicas, in_sync=in_sync, lag={"b": 0, "c": lag}
        )
        cluster = SimpleNamespace(state=lambda: SimpleNamespace(shards=[one]))
        world.patch.setattr(world.app.gateway.watching.alerts.sources, "_cluster", cluster)
        object.__setattr__(world.app.gateway, "cluster", cluster)  # as where cluster.coordinator is set

    return step


CASES: dict[str, Case] = {
    "depth": Case({"limit": 5}, waits, is_taken),
    "growth": Case({"limit": 1, "window_ms": 60_000, "queue": "orders"}, grows, passes),
    "oldest_age_ms": Case({"limit": 30_000}, ages, is_taken),
    "dead_letters": Case({"limit": 5, "queue": "orders"}, dies, is_purged),
    "dead_letter_rate": Case({"limit": 1, "window_ms": 60_000, "queue": "orders"}, dies, passes),
    "redelivery_rate": Case({"limit": 1, "window_ms": 60_000, "queue": "tried"}, comes_back, passes),
    "consumer_absence": Case({"limit": 0}, waits, has_a_consumer),
    "total_depth": Case({"limit": 12}, wait_in_two_queues, is_taken),
    "total_growth": Case({"limit": 1, "window_ms": 60_000, "queue": "orders"}, grows, passes),
    "total_dead_letters": Case({"limit": 5}, dies, is_purged),
    "total_dead_letter_rate": Case({"limit": 1, "window_ms": 60_000}, dies, passes),
    "total_redelivery_rate": Case({"limit": 1, "window_ms": 60_000}, comes_back, passes),
    "key_days": Case({"limit": 14}, key_ends_soon, key_is_revoked),
    "slo_availability": Case({"objective": 99.9}, fails, serves_on),
    "slo_latency": Case({"objective": 99.9, "latency_ms": 100}, is_slow, serves_on),
    "loop_lag_ms": Case({"limit": 100}, *process("loop_lag", 300, 5)),
    "disk_used_percent": Case({"limit": 80}, *process("disk", 90, 20)),
    "memory_used_percent": Case({"limit": 80}, *process("memory", 90, 20)),
    "certificate_days": Case({"limit": 14}, certificate(3), certificate(80)),
    "out_of_sync": Case({"limit": 0}, shard(["a", "b"], 0), shard(["a", "b", "c"], 0)),
    "replica_lag": Case({"limit": 1000}, shard(["a", "b", "c"], 5000), shard(["a", "b", "c"], 3)),
}


def test_every_kind_has_its_case() -> None:
    assert set(CASES) == set(KINDS)


@pytest.mark.parametrize("kind", list(CASES))
async def test_a_rule_of_each_kind_fires_past_its_limit_and_is_over_when_it_is_well(
    app: Application, person: Person, clock: Clock, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    world, case = World(app, person, clock, monkeypatch), CASES[kind]
    await person.api("PUT", QUEUE, {"max_attempts": 1})
    await person.api("PUT", "/v1/queues/tried", {"max_attempts": 100})
    if KINDS[kind].about == "shard":
        await case.better(world)
    await world.look(20)
    rule = await person.api("POST", "/v1/alert-rules", {"name": "watched", "kind": kind, **case.rule})
    app.gateway.watching.alerts.on_told.append(lambda _, alert, __: world.told.append(alert.state))
    await world.look()
    assert world.told == [], "all is well"
    await case.worse(world)
    await world.look(3)
    assert world.told == ["firing"]
    (alert,) = (await person.api("GET", "/v1/alerts"))["items"]
    assert (alert["rule"], alert["kind"], alert["state"]) == (rule["id"], kind, "firing")
    await case.better(world)
    await world.look(3)
    assert world.told == ["firing", "resolved"]
    states = [one["state"] for one in (await person.api("GET", "/v1/alerts/history"))["items"]]
    assert states == ["resolved", "firing"]
