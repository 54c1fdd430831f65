"""What a directory promises beside a metadata service: placements, and hosts that agree. Over both coordinators."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import msgspec
import pytest

from backend_store.cluster.coordinator import boot_seconds
from backend_store.cluster.core.values import Revision
from backend_store.metadata.changes import Change, News
from backend_store.metadata.directory.placement import Part
from backend_store.metadata.directory.service import DirectoryService, open_directory
from backend_store.model import ApiKey, InvalidRequest, QueueConfig, QueueNotFound, Unavailable
from tests.support.coordinators import WITHIN_S, Coordinated, over_etcd
from tests.support.etcd import Etcd
from tests.support.patience import eventually

pytestmark = pytest.mark.anyio

HERE, THERE = Part(0, "eu", 3), Part(0, "us", 0)
KEY = ApiKey("k", "name", "acme", (), b"", 0)
FRESH_S, BEAT_S = 1.0, 0.25
"""Instead of the four seconds that a host waits for its coordinator."""


@pytest.fixture
async def hosts(coordinated: Coordinated) -> AsyncIterator[tuple[DirectoryService, DirectoryService]]:
    async with (
        coordinated.another() as other,
        open_directory(coordinated.coordinator, host="a") as one,
        open_directory(other, host="b") as two,
    ):
        yield one, two


Hosts = tuple[DirectoryService, DirectoryService]


async def test_a_placement_is_written_over_the_version_it_is_based_on(hosts: Hosts) -> None:
    one, two = hosts
    queue, _ = await one.create_queue("default", "q", QueueConfig())
    placed = await one.place("default", "q", queue.uid, [HERE], version=0)
    assert placed is not None and (placed.version, placed.part()) == (1, HERE)
    assert (await one.get_placement(queue.uid)).value == placed
    assert await two.place("default", "q", queue.uid, [THERE], version=0) is None, "it has been placed"
    moved = await two.place("default", "q", queue.uid, [THERE, Part(1, "eu", 1)], version=1)
    assert moved is not None and moved.part(1).cluster == "eu"
    assert await two.list_placements() == [moved] and await two.list_placements(after=queue.uid) == []


async def test_of_many_who_place_a_queue_at_once_one_does(hosts: Hosts) -> None:
    queue, _ = await hosts[0].create_queue("default", "q", QueueConfig())
    tries = [host.place("default", "q", queue.uid, [HERE], version=0) for host in hosts * 4]
    assert sum(done is not None for done in await asyncio.gather(*tries)) == 1


async def test_a_placement_goes_with_its_queue_and_another_of_that_name_has_none(hosts: Hosts) -> None:
    one, two = hosts
    queue, _ = await one.create_queue("default", "q", QueueConfig())
    await one.place("default", "q", queue.uid, [HERE], version=0)
    await two.delete_queue("default", "q")
    again, _ = await two.create_queue("default", "q", QueueConfig())
    assert again.uid != queue.uid
    assert (await two.get_placement(queue.uid)).value is None and (await two.get_placement(again.uid)).value is None
    with pytest.raises(QueueNotFound, match=f"the number {queue.uid}"):
        await one.place("default", "q", queue.uid, [HERE], version=0)


async def test_a_config_that_changes_is_no_reason_to_refuse_a_placement(hosts: Hosts) -> None:
    queue, _ = await hosts[0].create_queue("default", "q", QueueConfig())
    await hosts[1].update_queue("default", "q", QueueConfig(visibility_timeout_ms=5), 1)
    assert await hosts[0].place("default", "q", queue.uid, [HERE], version=0) is not None


@pytest.mark.parametrize(
    ("parts", "told"),
    [([], "1 to 256"), ([Part(1, "eu", 0)], "partition 1"), ([HERE, HERE], "once"), ([Part(0, "eu", -1)], "shard")],
)
async def test_a_placement_that_cannot_be_is_refused_by_name(hosts: Hosts, parts: list[Part], told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        await hosts[0].place("default", "q", 1, parts, version=0)


async def test_names_that_no_record_can_have_are_refused(hosts: Hosts) -> None:
    for name in ("", "x" * 141, "a\0b"):
        with pytest.raises(InvalidRequest, match="name"):
            await hosts[0].create_queue("default", name, QueueConfig())
    with pytest.raises(InvalidRequest, match="together"):
        await hosts[0].create_queue("ü" * 100, "ü" * 100, QueueConfig())


async def test_who_watches_one_host_goes_on_at_the_other_without_a_gap(hosts: Hosts) -> None:
    one, two = hosts
    await two.put_tenant("before")  # both are there
    await one.store.seen(Revision(two.store.history.revision))
    async with aclosing(one.watch(None)) as watch:
        after = (await anext(watch)).now
    queue, _ = await one.create_queue("default", "q", QueueConfig())
    await one.place("default", "q", queue.uid, [HERE], version=0)
    await one.put_tenant("acme")
    heard: list[Change] = []
    async with asyncio.timeout(20), aclosing(two.watch(after)) as watch:
        async for news in watch:
            assert not news.is_reset
            heard += news.changes
            if len(heard) >= 3:
                break
    wanted = [Change("queue", "q", "default"), Change("placement", str(queue.uid)), Change("tenant", "acme")]
    assert heard == wanted


async def test_a_tenant_with_many_keys_takes_them_all_and_watchers_hear_of_each(hosts: Hosts) -> None:
    one, two = hosts
    await one.put_tenant("acme")
    for number in range(130):
        await one.put_key(msgspec.structs.replace(KEY, id=f"k{number:03}"))
    here = one.store.history.now
    await two.delete_tenant("acme")

    async def is_empty() -> bool:
        return not await one.list_keys()

    await eventually(is_empty)
    heard: set[Change] = set()
    async with asyncio.timeout(20), aclosing(one.watch(here)) as watch:
        async for news in watch:
            heard |= set(news.changes)
            if Change("tenant", "acme") in heard:
                break
    assert {Change("key", f"k{number:03}") for number in range(130)} <= heard
    await two.put_tenant("acme")
    assert await two.list_keys() == []


async def test_hosts_that_keep_some_arcs_answer_for_all(coordinated: Coordinated) -> None:
    async with (
        open_directory(coordinated.coordinator, host="a", url="ws://a", keeps_all=False) as one,
        open_directory(coordinated.coordinator, host="b", url="ws://b", keeps_all=False) as two,
        open_directory(coordinated.coordinator, host="c", url="ws://c", keeps_all=False) as three,
    ):

        async def is_shared() -> bool:
            return all(set(host.ring.urls) == {"a", "b", "c"} for host in (one, two, three))

        await eventually(is_shared)
        for number in range(30):
            await one.create_queue("default", f"q{number:02}", QueueConfig())
        for host in (one, two, three):
            await host.store.wait_filled()
            for number in range(30):
                assert (await host.get_queue("default", f"q{number:02}")).value is not None
            assert [queue.name for queue in await host.list_queues("default", after="q19")] == [
                f"q{number}" for number in range(20, 30)
            ]

        async def is_kept_twice() -> bool:
            held = [host.store.records for host in (one, two, three)]
            return sum(held) == 2 * 32 and max(held) < 32  # 30 queues, a tenant and its tally

        await eventually(is_kept_twice)


async def test_a_host_that_hears_nothing_of_its_coordinator_answers_nothing_from_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("service.FRESH_SECONDS_MAX", "store.FRESH_SECONDS_MAX"):
        monkeypatch.setattr(f"backend_store.metadata.directory.{place}", FRESH_S)
    monkeypatch.setattr("backend_store.metadata.directory.store.BEAT_SECONDS", BEAT_S)
    monkeypatch.setattr("backend_store.cluster.etcd.members.ETCD_REQUEST_SECONDS_MAX", 1.0)
    with Etcd(tmp_path) as etcd:
        async with over_etcd(*etcd.endpoints) as coordinator, open_directory(coordinator) as service:
            await service.create_queue("default", "q", QueueConfig())
            watch = service.watch(None)
            await anext(watch)
            etcd.members[0].kill()
            began = boot_seconds()
            with pytest.raises(Unavailable, match="ask another"):
                await asyncio.wait_for(_to_its_end(watch), WITHIN_S)
            assert boot_seconds() - began >= FRESH_S - 2 * BEAT_S, "a hiccup ends no watch"
            assert not service.store.is_fresh
            with pytest.raises(Unavailable):
                await service.get_queue("default", "q")
            etcd.members[0].start()
            etcd.wait_ready()

            async def is_back() -> bool:
                return service.store.is_fresh

            await eventually(is_back)
            assert (await service.get_queue("default", "q")).value is not None
            await service.create_queue("default", "later", QueueConfig())


async def _to_its_end(watch: AsyncIterator[News]) -> None:
    async for _ in watch:
        pass
