"""`pushq manager` between its start and its end."""

from __future__ import annotations

import asyncio

import pytest

from gateway.clusters.backends import backends_of
from gateway.config.settings import Settings, StoreSettings
from gateway.listener.certificates import OwnCertificates
from gateway.roles.manager import _open

pytestmark = pytest.mark.anyio


async def test_a_signal_ends_a_start_that_waits_for_backends() -> None:
    asked = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        settings, ended = Settings(store=StoreSettings(backends=(address,))), asyncio.Event()
        store = backends_of(settings, OwnCertificates())
        opening = asyncio.create_task(_open(store, settings, ended))
        await asked.wait()
        ended.set()
        assert await opening is False
        await store.close()
