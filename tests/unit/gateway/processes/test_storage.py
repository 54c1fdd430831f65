"""A folder with something in it that several processes cannot do is refused by name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from backend_store.client import Store, open_store
from backend_store.model import TENANT_DEFAULT, QueueConfig
from gateway.config.settings import Settings
from gateway.processes.storage import _check
from gateway.roles.errors import CannotStart

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = await open_store(tmp_path)
    await store.create_queue(TENANT_DEFAULT, "dead", QueueConfig(encrypted=False))
    yield store
    await store.close()


@pytest.mark.parametrize(
    "config",
    [
        QueueConfig(),
        QueueConfig(encrypted=True, dead_letter_queue=None),
        QueueConfig(encrypted=False, dead_letter_queue="dead"),
        QueueConfig(encrypted=True, dead_letter_queue="dead"),
    ],
)
async def test_queues_are_served_wherever_their_dead_letters_go(store: Store, config: QueueConfig) -> None:
    await store.create_queue(TENANT_DEFAULT, "orders", config)
    _check(store, Settings())


async def test_an_encrypted_queue_that_is_still_moving_is_refused(store: Store) -> None:
    await store.create_queue(TENANT_DEFAULT, "old", QueueConfig(encrypted=True))
    await store.move_queue(TENANT_DEFAULT, "old", "dead")
    with pytest.raises(CannotStart, match="queue 'old' of tenant 'default' was encrypted and deleted with move_to"):
        _check(store, Settings())
