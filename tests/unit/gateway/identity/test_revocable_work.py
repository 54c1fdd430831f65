"""Jobs and the credentials they were begun with."""

from __future__ import annotations

import asyncio

import pytest

from backend_store.client import Store
from backend_store.model import Unavailable
from gateway.identity import revocable_work
from gateway.identity.authentication import Keyring
from gateway.identity.revocable_work import RevocableWork
from tests.unit.gateway.conftest import Clock

pytestmark = pytest.mark.anyio


class Job:
    def __init__(self) -> None:
        self.id = "job"
        self.state = "running"
        self.told: list[str | None] = []
        self.reachable = asyncio.Event()
        self.is_away = False

    async def cancel(self, why: str | None = None) -> None:
        self.told.append(why)
        if self.is_away:
            raise Unavailable("the backend is away")
        await self.reachable.wait()
        self.state = "failed"


async def test_a_job_ends_with_its_key_and_others_go_on(store: Store, clock: Clock) -> None:
    keyring = Keyring(store, clock)
    jobs = RevocableWork(keyring)
    mine, theirs = Job(), Job()
    made = await keyring.create(name="k", tenant="default", scopes=("admin",))
    other = await keyring.create(name="o", tenant="default", scopes=("admin",))
    jobs.add(keyring.identify(made.token), mine)
    jobs.add(keyring.identify(other.token), theirs)
    await jobs.look()
    assert (mine.told, theirs.told) == ([], [])
    await keyring.revoke(made.stored.id)
    mine.is_away = True
    await jobs.look()
    assert mine.state == "running" and len(mine.told) == 1, "failed too often; the next attempt is in"
    mine.is_away = False
    mine.reachable.set()
    await jobs.look()
    assert mine.state == "failed" and mine.told[-1] is not None and mine.told[-1].startswith("the API key was revoked;")
    await jobs.look()
    assert len(mine.told) == 2 and theirs.told == []


async def test_a_revocation_does_not_wait_for_a_backend_that_is_away(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revocable_work, "BEGUN_LOOK_SECONDS", 0.01)
    keyring = Keyring(store, clock)
    jobs, job = RevocableWork(keyring), Job()
    made = await keyring.create(name="k", tenant="default", scopes=("admin",))
    jobs.add(keyring.identify(made.token), job)
    await keyring.revoke(made.stored.id)
    await jobs.end_withdrawn()
    assert job.state == "running" and len(job.told) == 1
    job.reachable.set()
    await jobs.end_withdrawn()
    assert job.state == "failed"
