"""Quotas of stored bytes: what counts, and for whom."""

from __future__ import annotations

from typing import Any, cast

import pytest

from backend_store.client import Store
from backend_store.core.log.chunk import KIND_JSON, Draft
from backend_store.model import COMPANION, QueueConfig, Quotas, StorageFull
from backend_store.service.definitions import Definitions
from gateway.admission.stored_quotas import StoredQuotas
from gateway.desk import GatewayDesk
from gateway.identity.authentication import Keyring
from gateway.identity.tickets import TicketOffice
from tests.support.far_queues import FarQueues
from tests.support.stores import died, drained, made, opened, published
from tests.unit.gateway.conftest import Clock

pytestmark = pytest.mark.anyio

MESSAGE = Draft(KIND_JSON, b'"' + b"x" * 1000 + b'"', {})


async def test_what_a_tenants_queues_hold_together_counts_dead_letters_too(store: Store, clock: Clock) -> None:
    await store.metadata.put_tenant("acme", 1, Quotas(stored_bytes=2500))
    stored = StoredQuotas(store)
    plain, _ = await store.create_queue("acme", "plain", QueueConfig())
    fails, _ = await store.create_queue("acme", "fails", QueueConfig(max_attempts=1, dead_letter_queue=COMPANION))
    other, _ = await store.create_queue("default", "other", QueueConfig())
    await published(other, *[MESSAGE] * 50)
    await published(plain, MESSAGE)
    await stored.look()
    assert stored.full == {}
    await died(fails, MESSAGE, MESSAGE)
    await stored.look()
    assert set(stored.full) == {"acme"} and "its quota is 2500" in stored.full["acme"]
    await drained(plain)
    await drained(store.queue("acme", "fails.dead"))
    await stored.look()
    assert stored.full == {}


async def test_queues_of_tenants_without_a_quota_are_not_looked_at(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever a queue was made, of whatever tenant, all of them were."""
    await store.metadata.put_tenant("acme", 1, Quotas(stored_bytes=1_000))
    stored = StoredQuotas(store)
    queue, _ = await store.create_queue("acme", "q", QueueConfig())
    await published(queue, MESSAGE)
    for number in range(20):
        await store.create_queue("default", f"q{number}", QueueConfig())
    rows = type(store.metadata.queues)
    with monkeypatch.context() as patched:
        for look in ("__iter__", "keys", "values", "items"):
            patched.setattr(rows, look, None)
        await stored.look()
    assert set(stored.full) == {"acme"} and stored.looked_at == 1


async def test_only_queues_that_something_happened_to_are_added_up_again(store: Store, clock: Clock) -> None:
    await store.metadata.put_tenant("acme", 1, Quotas(stored_bytes=1_000_000))
    stored = StoredQuotas(store)
    queues = [(await store.create_queue("acme", f"q{number}", QueueConfig()))[0] for number in range(100)]
    for queue in queues:
        await published(queue, MESSAGE)
    await stored.look()
    await stored.look()
    looked_at = stored.looked_at
    for _ in range(100):
        await stored.look()
    assert stored.looked_at == looked_at
    await store.metadata.put_tenant("acme", 1, Quotas(stored_bytes=108_000))
    await published(queues[7], *[MESSAGE] * 2)
    await stored.look()
    assert stored.looked_at == looked_at + 1 and set(stored.full) == {"acme"}
    await drained(queues[9])
    await drained(queues[10])
    await stored.look()
    assert stored.full == {}


async def test_while_nobody_has_a_quota_what_happens_is_not_gathered(store: Store, clock: Clock) -> None:
    """Deleted queues would be held in memory as long."""
    await store.metadata.put_tenant("acme", 1, Quotas(stored_bytes=1_000))
    stored = StoredQuotas(store)
    await stored.look()
    await store.metadata.put_tenant("acme", 1, Quotas())
    queue, _ = await store.create_queue("acme", "q", QueueConfig())
    await published(queue, MESSAGE)
    await stored.look()
    assert not any(store.node.touched._ears)
    await store.metadata.put_tenant("acme", 1, Quotas(stored_bytes=1_000))
    await stored.look()
    assert set(stored.full) == {"acme"}


async def test_the_desk_takes_no_publish_of_a_full_tenant_and_all_else(store: Store, clock: Clock) -> None:
    keyring, stored = Keyring(store, clock), StoredQuotas(store)
    desk = GatewayDesk(store, keyring, TicketOffice(clock), allowed_origins=(), dev=False, full=stored.full)
    principals = {}
    for tenant in ("acme", "default"):
        await store.metadata.put_tenant(tenant, 1)
        await store.create_queue(tenant, "q", QueueConfig())
        made = await keyring.create(name="k", tenant=tenant, scopes=("admin",))
        principals[tenant] = keyring.identify(made.token)
    stored.full["acme"] = "it holds too much"
    with pytest.raises(StorageFull, match="too much"):
        desk.publish_to(principals["acme"], "q")
    with pytest.raises(StorageFull, match="too much"):
        desk.publish_with_ack(principals["acme"], "q")
    assert desk.publish_with_ack(principals["default"], "q").name == "q"
    assert desk.publish_to(principals["default"], "q").name == "q"
    assert desk.queue(principals["acme"], "q", "consume").name == "q"


async def test_a_queue_that_is_made_or_deleted_has_no_others_added_up_again(store: Store) -> None:
    """Of 100,000 queues of one tenant each was, with every one that was made."""
    await store.metadata.put_tenant("acme", 1, Quotas(stored_bytes=3_000))
    stored = StoredQuotas(store)
    queues = [(await store.create_queue("acme", f"q{number}", QueueConfig()))[0] for number in range(30)]
    await published(queues[0], *[MESSAGE] * 4)
    await stored.look()
    assert set(stored.full) == {"acme"}
    looked_at = stored.looked_at
    await store.create_queue("acme", "new", QueueConfig())
    await store.create_queue("default", "other", QueueConfig())
    await store.delete_queue("acme", "q0")
    await stored.look()
    assert stored.looked_at - looked_at <= 2 and stored.full == {}
    await published(store.queue("acme", "new"), *[MESSAGE] * 4)
    await stored.look()
    assert set(stored.full) == {"acme"}
    await store.delete_queue("acme", "new")
    await store.create_queue("acme", "new", QueueConfig())
    await stored.look()
    assert stored.full == {}


async def test_queues_elsewhere_that_something_happened_to_are_asked_for_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of a tenant with a quota was asked for alone, every second."""
    backend = await opened()
    await backend.node.metadata.put_tenant("default", 1, Quotas(stored_bytes=3_000))
    names = [(await made(backend, f"q{number}")).name for number in range(30)]
    world = FarQueues(backend, monkeypatch)
    world.define(*names)
    tenant = backend.node.metadata.tenants["default"]
    world.gateway.defined(Definitions(tenants=[tenant]), is_first=False)
    stored = StoredQuotas(cast(Any, world.gateway))

    async def asks() -> int:
        before = world.asks
        await stored.look()
        return world.asks - before

    await asks()
    assert stored.looked_at == 30 and await asks() == 1, "what changed"
    await published(backend.here("default", "q3"), *[MESSAGE] * 4)
    assert await asks() == 2 and set(stored.full) == {"default"} and stored.looked_at == 31
    world.is_away = True
    await drained(backend.here("default", "q3"))
    await stored.look()
    assert set(stored.full) == {"default"}
    world.is_away = False
    await stored.look()
    assert stored.full == {} and await asks() == 1
    await world.close()
