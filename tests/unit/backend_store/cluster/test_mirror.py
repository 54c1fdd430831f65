"""A mirror over a coordinator whose watch lies: it notices, and lists again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

import pytest

from backend_store.cluster import mirror as mirrors
from backend_store.cluster.core.values import NEVER, Changes, Delete, Page, Put, Revision, Transaction
from backend_store.cluster.embedded import EmbeddedCoordinator
from backend_store.cluster.mirror import Mirror
from backend_store.model import Unavailable
from backend_store.storage.engine import Batch
from backend_store.storage.memory import MemoryEngine
from tests.support.coordinators import put
from tests.support.patience import eventually

pytestmark = pytest.mark.anyio


class Deaf(EmbeddedCoordinator):
    """While `is_deaf`, watches tell nothing; while `is_away`, reads fail; `revision` is what it claims to be at."""

    def __init__(self) -> None:
        engine = MemoryEngine()

        async def write(rows: Batch) -> None:
            engine.commit(rows, lambda: None)

        super().__init__(engine, write)
        self.is_deaf = False
        self.is_away = False
        self.claims: Revision | None = None
        self.between_pages: Transaction | None = None
        """What somebody does after the next read."""

    async def watch(self, prefix: bytes, *, after: Revision) -> AsyncGenerator[Changes, None]:
        async for changes in super().watch(prefix, after=after):
            if not self.is_deaf:
                yield changes

    async def read(
        self,
        prefix: bytes,
        *,
        after: bytes = b"",
        limit: int = 2,
        at: Revision | None = None,
        changed_after: Revision = NEVER,
    ) -> Page:
        if self.is_away:
            raise Unavailable("it is away")
        page = await super().read(prefix, after=after, limit=min(limit, 2), at=at, changed_after=changed_after)
        if self.between_pages is not None:
            change, self.between_pages = self.between_pages, None
            await self.transact(change)
        return page if self.claims is None else Page(page.records, self.claims, page.count, page.has_more)


@pytest.fixture
async def deaf(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Deaf]:
    monkeypatch.setattr(mirrors, "MIRROR_CHECK_SECONDS", 0.01)
    monkeypatch.setattr(mirrors, "MIRROR_BEHIND_SECONDS_MAX", 0.05)
    monkeypatch.setattr(mirrors, "CAMPAIGN_PAUSE_SECONDS", 0.01)
    coordinator = Deaf()
    yield coordinator
    await coordinator.close()


@pytest.fixture
async def mirror(deaf: Deaf) -> AsyncIterator[Mirror]:
    for number in range(5):
        await put(deaf, b"m/%d" % number)
    mirror = Mirror(deaf, b"m/")
    task = asyncio.create_task(mirror.run())
    await asyncio.wait_for(mirror.wait_filled(), 10)
    yield mirror
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_list_of_several_pages_is_of_one_revision(deaf: Deaf) -> None:
    for number in range(5):
        await put(deaf, b"m/%d" % number)
    deaf.between_pages = Transaction(then=(Delete(b"m/0"), Put(b"m/1", b"new"), Put(b"m/9", b"")))
    mirror = Mirror(deaf, b"m/")
    await mirror._list()
    assert sorted(mirror.records) == [b"m/%d" % number for number in range(5)]
    assert (mirror.revision, mirror.records[b"m/1"].value) == (6, b"")


@pytest.mark.parametrize("change", [Put(b"m/0", b"new"), Put(b"m/9", b"new"), Delete(b"m/0")])
async def test_an_event_that_never_comes_is_found_missing(deaf: Deaf, mirror: Mirror, change: Put | Delete) -> None:
    deaf.is_deaf = True
    last = (await deaf.transact(Transaction(then=(change,)))).revision
    await asyncio.wait_for(mirror.wait_revision(last), 10)
    assert mirror.lists >= 2
    assert dict(mirror.records) == {record.key: record for record in deaf._state.records.values()}


async def test_a_mirror_without_its_coordinator_grows_older_and_keeps_what_it_has(deaf: Deaf, mirror: Mirror) -> None:
    deaf.is_away = True
    as_of = mirror.as_of

    async def is_older() -> bool:
        return mirror.staleness_s > 0.2

    await eventually(is_older)
    assert len(mirror.records) == 5 and mirror.as_of == as_of
    deaf.is_away = False

    async def is_fresh() -> bool:
        return mirror.staleness_s < 0.1

    await eventually(is_fresh)
    assert mirror.lists == 1


async def test_a_coordinator_that_went_back_in_time_is_read_anew(deaf: Deaf, mirror: Mirror) -> None:
    """As one that was restored from a backup."""
    deaf.claims = Revision(1)

    async def has_listed() -> bool:
        return mirror.lists >= 2

    await eventually(has_listed)
    deaf.claims = None
    await asyncio.wait_for(mirror.wait_revision(deaf._state.revision), 10)
    assert len(mirror.records) == 5
