"""Keys with time: when they were last used, and how they go."""

from __future__ import annotations

from typing import Any

import pytest

from backend_store.client import Queue, Store
from backend_store.model import QueueConfig, Unavailable
from gateway.identity.api_key_upkeep import ApiKeyUpkeep
from gateway.identity.authentication import Keyring, NewKey
from gateway.limits import EXPIRED_KEY_KEPT_MS
from push.connections import Connections, WaitingPoll
from tests.unit.gateway.conftest import Clock

pytestmark = pytest.mark.anyio

MINUTE_MS = 60_000


async def nobody() -> Any:
    raise AssertionError("nothing is read from its client")


async def a_queue(store: Store) -> Queue:
    return (await store.create_queue("default", "q", QueueConfig()))[0]


async def make(keyring: Keyring, *, expires_at_ms: int | None = None) -> NewKey:
    return await keyring.create(name="k", tenant="default", scopes=("admin",), expires_at_ms=expires_at_ms)


async def test_the_last_use_of_a_key_is_known_to_the_minute_and_after_a_restart(store: Store, clock: Clock) -> None:
    keyring = Keyring(store, clock)
    made = await make(keyring)
    assert keyring.last_used_ms(made.stored.id) is None
    keyring.identify(made.token)
    minute_ms = clock.ms - clock.ms % MINUTE_MS
    assert keyring.last_used_ms(made.stored.id) == minute_ms
    await ApiKeyUpkeep(store, keyring, Connections()).look()
    assert Keyring(store, clock).last_used_ms(made.stored.id) == minute_ms


async def test_all_keys_used_in_a_minute_cost_one_commit_and_the_same_minute_again_none(
    store: Store, clock: Clock
) -> None:
    keyring = Keyring(store, clock)
    tokens = [(await make(keyring)).token for _ in range(20)]
    care = ApiKeyUpkeep(store, keyring, Connections())
    engine = store.node.engine
    for expected in (1, 0):
        before = engine.commits  # type: ignore[attr-defined]
        for token in tokens * 3:
            keyring.identify(token)
        await care.look()
        assert engine.commits - before == expected  # type: ignore[attr-defined]
    clock.ms += MINUTE_MS
    keyring.identify(tokens[0])
    await care.look()
    assert len(set(store.metadata.keys_used.values())) == 2


async def test_a_use_that_could_not_be_stored_is_stored_the_next_time(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyring = Keyring(store, clock)
    early, late = await make(keyring), await make(keyring)
    care = ApiKeyUpkeep(store, keyring, Connections())
    keyring.identify(early.token)
    keyring.identify(late.token)
    minute_ms = clock.ms - clock.ms % MINUTE_MS

    async def refuse(used: dict[str, int]) -> None:
        clock.ms += MINUTE_MS
        keyring.identify(late.token)
        raise Unavailable("1 of at least 2 replicas are in sync")

    with monkeypatch.context() as patched:
        patched.setattr(store.metadata, "note_keys_used", refuse)
        with pytest.raises(Unavailable):
            await care.look()
    await care.look()
    stored = {early.stored.id: minute_ms, late.stored.id: minute_ms + MINUTE_MS}
    assert store.metadata.keys_used == stored


async def test_a_key_of_an_open_connection_is_in_use(store: Store, clock: Clock) -> None:
    keyring = Keyring(store, clock)
    made = await make(keyring)
    connections = Connections()
    connections.add("poll", WaitingPoll(keyring.identify(made.token), "", await a_queue(store), nobody))
    care = ApiKeyUpkeep(store, keyring, connections)
    await care.look()
    clock.ms += 5 * MINUTE_MS
    await care.look()
    assert keyring.last_used_ms(made.stored.id) == clock.ms - clock.ms % MINUTE_MS


async def test_nothing_is_kept_of_the_use_of_a_key_that_is_gone(store: Store, clock: Clock) -> None:
    keyring = Keyring(store, clock)
    made = await make(keyring)
    care = ApiKeyUpkeep(store, keyring, Connections())
    keyring.identify(made.token)
    await care.look()
    keyring.identify(made.token)
    await keyring.revoke(made.stored.id)
    await care.look()
    assert store.metadata.keys_used == {}


async def test_an_expired_key_is_removed_after_a_month_and_others_stay(store: Store, clock: Clock) -> None:
    keyring = Keyring(store, clock)
    over = await make(keyring, expires_at_ms=clock.ms + 1000)
    lasting = await make(keyring)
    care = ApiKeyUpkeep(store, keyring, Connections())
    clock.ms += 1000 + EXPIRED_KEY_KEPT_MS
    await care.look()
    assert set(store.metadata.keys) == {over.stored.id, lasting.stored.id}
    clock.ms += 1
    await care.look()
    assert set(store.metadata.keys) == {lasting.stored.id}


async def test_a_clock_that_is_years_ahead_for_a_moment_costs_no_key(store: Store) -> None:
    wall = Clock()
    keyring = Keyring(store, wall)
    made = await make(keyring, expires_at_ms=wall.ms + EXPIRED_KEY_KEPT_MS)
    care = ApiKeyUpkeep(store, keyring, Connections())
    wall.ms += 20 * EXPIRED_KEY_KEPT_MS
    await care.look()
    wall.ms -= 20 * EXPIRED_KEY_KEPT_MS
    assert keyring.identify(made.token).id == made.stored.id
