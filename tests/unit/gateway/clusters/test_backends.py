"""A gateway and a manager whose backends are all gone say which setting named them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from backend_store.remote import store as stores
from gateway.admission.dependency_guard import Guards
from gateway.clusters.backends import backends_of, open_backends
from gateway.config.settings import Settings, StoreSettings
from gateway.listener.certificates import OwnCertificates
from gateway.roles.errors import CannotStart
from gateway.roles.manager import _open

pytestmark = pytest.mark.anyio

NOBODY = "127.0.0.1:1"
SAYS = f"cannot start with the backends that store.backends names, {NOBODY}: the backend of shard 0 is unreachable"


@pytest.fixture(autouse=True)
def _is_impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "START_SECONDS_MAX", 0.1)


async def test_a_gateway_says_so(tmp_path: Path) -> None:
    settings = Settings(data=str(tmp_path), store=StoreSettings(backends=(NOBODY,)))
    with pytest.raises(CannotStart, match=SAYS):
        await open_backends(settings, Guards(), OwnCertificates())


async def test_a_manager_says_so() -> None:
    settings = Settings(store=StoreSettings(backends=(NOBODY,)))
    store = backends_of(settings, OwnCertificates())
    try:
        with pytest.raises(CannotStart, match=SAYS):
            await _open(store, settings, asyncio.Event())
    finally:
        await store.close()
