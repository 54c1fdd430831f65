"""A gateway and a backend connected without a network, for measuring the cost of many queues."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from backend_store.client.embedded import EmbeddedStore
from backend_store.model import PushqError, Unavailable
from backend_store.remote.home import Home
from backend_store.remote.store import RemoteBackends
from backend_store.service.definitions import Definitions
from backend_store.service.operations import decode_operation, perform
from backend_store.service.pulses import TakePulses
from backend_store.wire.store_frames import raw

PULSES_PER_ASK = 8


class Nowhere:
    def address(self, shard: int) -> None:
        """No address is known."""

    def failed(self, shard: int, address: Any, leader: str | None) -> None: ...


def looking_up(what: str, flight: Any) -> PushqError:
    return Unavailable(what)


class FarQueues:
    """See the module docstring. Pulses are requested when the test says so."""

    def __init__(self, backend: EmbeddedStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.backend = backend
        self.gateway = RemoteBackends(Nowhere(), None, looking_up)
        self.gateway.first.adopted.is_ours = True
        self.asks = 0
        self.is_old = self.is_away = False

        async def ask(home: Home, operation: Any, **_: Any) -> msgspec.Raw:
            return await self._answer(operation)

        monkeypatch.setattr(Home, "ask", ask)
        monkeypatch.setattr("backend_store.remote.line.pulses.PULSES_FRESH_SECONDS", 1e9)
        for where in ("remote.line", "service"):
            monkeypatch.setattr(f"backend_store.{where}.pulses.PULSES_PER_ASK_MAX", PULSES_PER_ASK)

    async def _answer(self, operation: Any) -> msgspec.Raw:
        self.asks += 1
        if self.is_away:
            raise Unavailable("nobody leads the shard")
        asked = decode_operation(msgspec.msgpack.encode(operation))
        if self.is_old and isinstance(asked, TakePulses):
            asked = TakePulses(asked.after)
        return raw(await perform(self.backend, asked))

    def define(self, *names: str, gone: tuple[str, ...] = ()) -> None:
        """Announces these queues to the gateway."""
        found = [self.backend.here("default", name).definition for name in names]
        news = Definitions(queues=found, queues_gone=[("default", name) for name in gone])
        self.gateway.defined(news, is_first=False)

    async def refresh(self) -> int:
        """Returns how many requests it took."""
        before = self.asks
        await self.gateway._pulses._ask()
        return self.asks - before

    def ready(self, name: str) -> int | None:
        pulse = self.gateway.last_pulse(self.gateway.metadata.find("default", name))
        return pulse.ready if pulse is not None else None

    async def close(self) -> None:
        await self.gateway.close()
        await self.backend.close()
