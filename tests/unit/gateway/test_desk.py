"""The desk: which pages may connect, and in which order a caller is refused."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from math import inf
from typing import Any

import pytest
from msgspec import Raw

from backend_store.client import Store
from backend_store.model import Conflict, Forbidden, QueueConfig, QueueNotFound, Quotas, Unauthenticated, Unavailable
from gateway.desk import GatewayDesk
from gateway.identity.authentication import Keyring
from gateway.identity.tickets import TicketOffice
from push.protocol import PublishMessage
from tests.unit.gateway.conftest import Clock

pytestmark = pytest.mark.anyio

HOST = "pushq.example:8080"


def desk(store: Store, clock: Clock, *origins: str, dev: bool = False) -> GatewayDesk:
    return GatewayDesk(store, Keyring(store, clock), TicketOffice(clock), allowed_origins=origins, dev=dev)


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        (None, True),
        ("http://pushq.example:8080", True),
        ("https://PUSHQ.example:8080", True),
        ("http://pushq.example", False),
        ("http://pushq.example:8080.evil.example", False),
        ("https://shop.example", True),
        ("http://shop.example", False),
        ("https://shop.example.evil.example", False),
        ("http://localhost:3000", False),
        ("null", False),
        ("file://pushq.example:8080", False),
        ("http://[", False),
        ("", False),
    ],
)
async def test_pages_of_this_server_and_of_the_list_may_connect(
    store: Store, clock: Clock, origin: str | None, allowed: bool
) -> None:
    assert desk(store, clock, "https://shop.example").allowed_origin(origin, HOST) is allowed


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("http://localhost:3000", True),
        ("https://127.0.0.1", True),
        ("http://[::1]:5", True),
        ("http://app.localhost", True),
        ("http://localhost.evil.example", False),
        ("http://evil.example", False),
    ],
)
async def test_dev_adds_every_page_of_this_machine(store: Store, clock: Clock, origin: str, allowed: bool) -> None:
    assert desk(store, clock, dev=True).allowed_origin(origin, HOST) is allowed


async def test_a_star_allows_every_page(store: Store, clock: Clock) -> None:
    assert desk(store, clock, "*").allowed_origin("http://anywhere.example", HOST)


async def test_an_absent_queue_is_told_before_a_missing_scope(store: Store, clock: Clock) -> None:
    await store.create_queue("default", "here", QueueConfig())
    await store.create_queue("other", "theirs", QueueConfig())
    keyring = Keyring(store, clock)
    made = await keyring.create(name="k", tenant="default", scopes=("publish:here",))
    principal = keyring.identify(made.token)
    asked = desk(store, clock)
    assert asked.queue(principal, "here", "publish").name == "here"
    with pytest.raises(Forbidden):
        asked.queue(principal, "here", "consume")
    for absent in ("nowhere", "theirs"):
        with pytest.raises(QueueNotFound):
            asked.queue(principal, absent, "publish")


async def test_a_ticket_dies_with_its_key(store: Store, clock: Clock) -> None:
    keyring, office = Keyring(store, clock), TicketOffice(clock)
    asked = GatewayDesk(store, keyring, office, allowed_origins=(), dev=False)
    made = await keyring.create(name="k", tenant="default", scopes=("publish:here",))
    ticket = office.issue(keyring.identify(made.token))
    await keyring.revoke(made.stored.id)
    with pytest.raises(Unauthenticated):
        asked.redeem(ticket.text)


async def test_blocks_are_made_for_the_partitions_that_a_queue_has(store: Store, clock: Clock) -> None:
    one, _ = await store.create_queue("default", "one", QueueConfig())
    four, _ = await store.create_queue("default", "four", QueueConfig(partitions=4))
    messages = [PublishMessage(body=Raw(b"1"), key=f"customer-{number}") for number in range(64)]
    assert [block.slots for block in desk(store, clock).prepare(one, messages, "json").blocks] == [0]
    made = desk(store, clock).prepare(four, messages, "json")
    assert len(made.blocks) == 4 and all(block.slots for block in made.blocks)
    assert made.order is not None and sorted(made.order) == list(range(64))
    bodies = desk(store, clock).prepare_plain(four, [Raw(b"1"), Raw(b"2")], "json")
    assert len(bodies.blocks) == 1 and bodies.order is None


async def test_a_publish_that_may_make_no_queue_is_told_why(store: Store, clock: Clock) -> None:
    keyring = Keyring(store, clock)
    await store.metadata.put_tenant("small", 1, Quotas(queues=1))
    token = (await keyring.create(name="k", tenant="small", scopes=("publish:*",))).token
    makes_any = GatewayDesk(
        store, keyring, TicketOffice(clock), allowed_origins=(), dev=False, auto_config=lambda name: QueueConfig()
    )
    for name, refusal in (("first", None), ("second", Conflict)):
        making = makes_any.made_by_publish(keyring.identify(token), name, inf)
        assert making is not None
        with pytest.raises(refusal) if refusal else nullcontext():
            await making


async def test_a_queue_that_a_publish_makes_is_made_once_for_all_who_publish_meanwhile(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyring, create, may_end, made = Keyring(store, clock), store.create_queue, asyncio.Event(), []
    principal = keyring.identify((await keyring.create(name="k", tenant="default", scopes=("publish:*",))).token)
    makes_any = GatewayDesk(
        store, keyring, TicketOffice(clock), allowed_origins=(), dev=False, auto_config=lambda name: QueueConfig()
    )

    async def slowly(tenant: str, name: str, config: QueueConfig) -> Any:
        """It is defined, and its key is still to come."""
        made.append(name)
        answer = await create(tenant, name, config)
        await may_end.wait()
        return answer

    monkeypatch.setattr(store, "create_queue", slowly)
    makings = [makes_any.made_by_publish(principal, "new", inf) for _ in range(3)]
    tasks = [asyncio.ensure_future(making) for making in makings if making is not None]
    async with asyncio.timeout(5):
        while ("default", "new") not in store.metadata.queues:  # noqa: ASYNC110 - it is made in the background
            await asyncio.sleep(0)
    with pytest.raises(QueueNotFound):
        makes_any.publish_to(principal, "new")
    hasty = makes_any.made_by_publish(principal, "new", asyncio.get_running_loop().time() + 0.01)
    assert hasty is not None
    with pytest.raises(Unavailable, match="nothing was accepted"):
        await asyncio.wait_for(hasty, 5)
    tasks[0].cancel()
    may_end.set()
    await asyncio.gather(*tasks[1:])
    assert made == ["new"] and makes_any.publish_to(principal, "new").name == "new"
