"""The hub's housekeeping goes on whatever happens to one session."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from push import hub as push_hub
from push.core.resume import Parked
from push.hub import Hub


@pytest.mark.anyio
async def test_a_fault_in_one_beat_does_not_end_the_housekeeping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the leases of sessions that were cut would never return."""
    monkeypatch.setattr(push_hub, "HOUSEKEEPING_SECONDS", 0.001)
    store: Any = SimpleNamespace(take_kept=lambda: ([], {}))
    desk: Any = None
    hub = Hub(store, desk, clock_ms=lambda: 1_000_000)
    faulty: Any = object()
    hub.waiting.add(faulty)
    hub.parked.park(Parked("first", "somebody", 0))
    await asyncio.sleep(0.02)
    hub.parked.park(Parked("second", "somebody", 0))
    async with asyncio.timeout(5):
        while len(hub.parked):  # noqa: ASYNC110 - what is waited for is the hub's own beat
            await asyncio.sleep(0.001)
    await hub.close()


@pytest.mark.anyio
async def test_whoever_connects_during_the_farewells_gets_one_too() -> None:
    store: Any = SimpleNamespace(take_kept=lambda: ([], {}))
    desk: Any = None
    hub = Hub(store, desk, clock_ms=lambda: 1_000_000)
    said: list[str] = []

    def member(name: str, *, brings: str | None = None) -> Any:
        def bye(retry_ms: int) -> None:
            said.append(name)
            del hub.sessions[name]
            if brings is not None:
                hub.sessions[brings] = member(brings)

        return SimpleNamespace(bye=bye)

    hub.sessions["early"] = member("early", brings="late")
    await hub.drain()
    assert said == ["early", "late"] and not hub.sessions
    await hub.close()
