"""Data keys that another gateway made: each is taken in when it opens, whatever the others do."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from backend_store.client import DataKey
from backend_store.metadata.queue_rows import QueueRows
from backend_store.model import QueueConfig, Unavailable
from gateway.encryption.data_keys import DAY_MS, Vault
from gateway.encryption.master_keys import MasterError
from tests.support.sealed import FlakyMasters, Sealed, opened_sealed
from tests.support.stores import made

pytestmark = pytest.mark.anyio
OTHER = b"o" * 32


class PickyMasters(FlakyMasters):
    """Opens nothing at all of a request that has one of these keys in it, as a key server may."""

    def __init__(self, *keys: bytes) -> None:
        super().__init__(*keys)
        self.refused: set[int] = set()

    async def unwrap(self, keys: Sequence[DataKey]) -> list[bytes]:
        if refused := self.refused & {key.id for key in keys}:
            self.asked += 1
            raise Unavailable(f"the key server refuses {refused}")
        return await super().unwrap(keys)


async def elsewhere(sealed: Sealed, masters: FlakyMasters) -> tuple[Vault, list[DataKey]]:
    """Another gateway's vault that has heard of nothing yet, and the keys it will hear of."""
    for number in range(4):
        await made(sealed.store, f"q{number}")
    metadata = sealed.store.metadata
    return Vault(metadata, masters, data_key_days=30, clock_ms=lambda: 5), list(metadata.data_keys.by_id.values())


async def test_one_key_that_does_not_open_keeps_no_other_away() -> None:
    masters = PickyMasters()
    sealed = await opened_sealed()
    vault, keys = await elsewhere(sealed, masters)
    masters.refused = {keys[1].id}
    with pytest.raises(Unavailable, match="refuses"):
        await vault.learn(keys)
    assert vault.keys == 3 and vault.master_failures == 1
    masters.refused = set()
    asked = masters.asked
    await vault.learn(keys)
    assert vault.keys == 4 and masters.asked == asked + 1, "only what is missing is asked about"
    await vault.learn(keys)
    assert masters.asked == asked + 1
    await sealed.store.close()


async def test_keys_under_a_master_key_that_is_not_here_wait_and_the_others_are_learnt() -> None:
    sealed = await opened_sealed()
    vault, keys = await elsewhere(sealed, FlakyMasters())
    other = Vault(sealed.store.metadata, FlakyMasters(OTHER, b"m" * 32), data_key_days=30, clock_ms=lambda: 5)
    await other.open()
    await other.rewrap(keys[:2])
    keys = list(sealed.store.metadata.data_keys.by_id.values())
    with pytest.raises(MasterError):
        await vault.learn(keys)
    assert vault.keys == 2
    vault.masters = FlakyMasters(b"m" * 32, OTHER)  # its operator adds the further key
    await vault.learn(keys)
    assert vault.keys == 4
    await sealed.store.close()


async def test_nothing_is_learnt_while_the_master_key_is_away_and_all_of_it_afterwards() -> None:
    masters = FlakyMasters()
    sealed = await opened_sealed()
    vault, keys = await elsewhere(sealed, masters)
    masters.is_away = True
    with pytest.raises(Unavailable):
        await vault.learn(keys)
    assert vault.keys == 0
    masters.is_away = False
    await vault.learn(keys)
    assert vault.keys == 4
    await sealed.store.close()


async def test_keys_are_made_and_learnt_without_a_look_at_all_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each key that was made had its gateway look at all queues, and every other one, too."""
    sealed, now = await opened_sealed(), [5]
    vault, keys = await elsewhere(sealed, FlakyMasters())
    vault._clock_ms = lambda: now[0]
    uids = [key.uid for key in keys]
    with monkeypatch.context() as patched:
        for look in ("__iter__", "keys", "values", "items"):
            patched.setattr(QueueRows, look, None)
        await vault.learn(keys)
        assert vault.keys == 4
        now[0] = max(key.created_at_ms for key in keys) + 29 * DAY_MS
        await vault._make_wanted()
        assert vault.keys == 4
        await sealed.store.update_queue("default", "q2", QueueConfig(encrypted=False), version=1)
        now[0] += DAY_MS + 1
        await vault._make_wanted()
        assert {uid: len(vault._seals[uid].ciphers) for uid in uids} == dict(zip(uids, (2, 2, 1, 2), strict=True))
        await vault._make_wanted()
        await sealed.store.update_queue("default", "q2", QueueConfig(encrypted=True), version=2)
        await vault._make_wanted()
        assert vault.keys == 8 and not vault._wanted
        await vault._make_wanted()
        assert vault.keys == 8 and not vault._worn
    for uid in (uids[0], uids[0], 99):
        vault.shredded(uid)
    assert vault.keys == 6 == sum(len(seal.ciphers) for seal in vault._seals.values())
    await sealed.store.close()
