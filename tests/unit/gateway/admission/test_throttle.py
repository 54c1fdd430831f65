"""Whose account a request goes on, and what it costs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from backend_store.model import Block, PushqError, Quotas, Unavailable
from gateway.admission.throttle import Throttle
from tests.support.patience import eventually
from throttling.census import Census, Who
from throttling.limiter import MemoryLimiter
from throttling.redis_store import Take, Taken
from throttling.rules import PER_PRINCIPAL, Dimension, Rule
from throttling.shared import SharedLimiter

ANN = Who("acme", "key-1", "10.0.0.1")


def throttle(*rules: Rule, quotas: Quotas | None = None) -> Throttle:
    return Throttle(
        MemoryLimiter(),
        rules or (PER_PRINCIPAL,),
        Census(),
        quotas_of=lambda tenant: quotas or Quotas(),
        has_queue=lambda tenant, name: name == "orders",
    )


def subjects(per: tuple[Dimension, ...], who: Who, queue: str | None = "orders") -> list[str]:
    return [charge.subject for charge in throttle(Rule("r", 10, per=per)).request(who, "publish", queue)]


@pytest.mark.parametrize(
    ("per", "subject"),
    [
        (("principal",), "key-1"),
        (("tenant",), "acme"),
        (("queue",), "acme/orders"),
        (("address",), "10.0.0.1"),
        (("principal", "queue"), "key-1|acme/orders"),
    ],
)
def test_subject_is_who_the_rule_is_per(per: tuple[Dimension, ...], subject: str) -> None:
    assert subjects(per, ANN) == [subject]


def test_somebody_unknown_is_held_to_the_rule_for_principals_by_the_address() -> None:
    assert subjects(("principal",), Who(address="10.0.0.9")) == ["@10.0.0.9"]
    assert subjects(("tenant",), Who(address="10.0.0.9")) == []


def test_names_of_queues_that_are_not_there_are_not_remembered() -> None:
    assert subjects(("queue",), ANN, "made-up") == [] and subjects(("queue",), ANN, None) == []


def test_addresses_of_one_ipv6_network_are_one_subject() -> None:
    network = "2001:db8:1:2::/64"
    for address in ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", "2001:db8:1:2::1%eth0"):
        assert subjects(("address",), ANN._replace(address=address)) == [network]


def test_publish_costs_its_request_its_messages_and_its_bytes() -> None:
    rules = [Rule("r", 10), Rule("m", 10, unit="messages"), Rule("b", 10, unit="bytes")]
    blocks = [Block(b"12345", 2), Block(b"123", 1)]
    both = throttle(*rules).publishing(ANN, [("orders", blocks)], is_request=True)
    assert [(charge.rule.name, charge.cost) for charge in both] == [("r", 1), ("m", 3), ("b", 8)]
    paid = throttle(*rules).publishing(ANN, [("orders", blocks)], is_request=False)
    assert [(charge.rule.name, charge.cost) for charge in paid] == [("m", 3), ("b", 8)]


def test_publishes_of_one_ack_are_one_charge_a_subject() -> None:
    rule = Rule("m", 10, per=("tenant",), unit="messages")
    publishes = [("orders", [Block(b"1", 2)]), ("orders", [Block(b"1", 3)])]
    assert [charge.cost for charge in throttle(rule).publishing(ANN, publishes, is_request=True)] == [5]


def test_rule_says_nothing_about_operations_that_it_does_not_name() -> None:
    held = throttle(Rule("r", 10, operations=frozenset({"connect"})))
    assert held.request(ANN, "publish", "orders") == [] and len(held.request(ANN, "connect")) == 1
    assert held.publish(ANN, [("orders", [Block(b"1", 1)])]) is None


def test_quotas_of_a_tenant_are_held_beside_the_rules() -> None:
    held = throttle(quotas=Quotas(requests_per_s=2))
    assert [held.operation(ANN, "receive", "orders") is None for _ in range(3)] == [True, True, False]
    assert held.refused == {"tenant-requests": 1}


# ------------------------------------------------------------------------------------------------------- deadlines


class Standing:
    """Shared counts that answer when the test lets them."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.asked: list[int] = []
        """How many hits each round trip had."""

    async def take(self, hits: Sequence[Sequence[Take]]) -> list[tuple[bool, list[Taken]]]:
        self.asked.append(len(hits))
        await self.may_answer.wait()
        return [(True, [Taken(take.least, 1, 0) for take in hit]) for hit in hits]

    async def ping(self) -> None: ...
    async def disconnect(self) -> None: ...
    async def close(self) -> None: ...


@pytest.mark.anyio
async def test_who_waits_for_shared_counts_is_answered_in_its_own_time_and_takes_nothing_after_it() -> None:
    store = Standing()
    limiter = SharedLimiter(store, seconds_max=60, probe_seconds=0.01)
    rules = (Rule("tenant", 10, per=("tenant",)),)
    shared = Throttle(limiter, rules, Census(), quotas_of=lambda _: Quotas(), has_queue=lambda *_: True)
    loop = asyncio.get_running_loop()

    def publish(tenant: str, wait_s: float) -> asyncio.Future[PushqError | None]:
        who = Who(tenant, "key-1", "10.0.0.1")
        verdict = shared.publish(who, [("orders", [Block(b"1", 1)])], loop.time() + wait_s)
        assert asyncio.iscoroutine(verdict)
        return asyncio.ensure_future(verdict)

    first = publish("first", 60)
    await eventually(lambda: store.asked == [1])
    hasty = await publish("hasty", 0.01)
    assert isinstance(hasty, Unavailable) and "nothing was done" in hasty.detail
    staying = publish("staying", 60)
    store.may_answer.set()
    assert (await first, await staying) == (None, None)
    assert store.asked == [1, 1], "the one that had gone was not asked about"
    await limiter.close()
