"""One set of promises over every metadata service: in the process of its caller, and behind a socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass

import msgspec
import pytest

from backend_store.metadata.changes import Change, Moment, News
from backend_store.metadata.limits import CHANGES_KEPT_MAX, CHANGES_PER_TURN_MAX
from backend_store.metadata.local import LocalMetadata
from backend_store.metadata.service import MetadataService
from backend_store.model import ApiKey, Conflict, NotFound, QueueConfig, QueueNotFound, Quotas
from tests.support.metadata import local_service, remote_service

pytestmark = pytest.mark.anyio

KEY = ApiKey("k1", "name", "default", ("publish:*",), b"\x00\xff", 7, expires_at_ms=9)
STREAM = QueueConfig(kind="stream", tags={"a": "b"})


@dataclass
class Subject:
    service: MetadataService
    behind: LocalMetadata
    """The rows themselves: what another gateway changes is changed here."""


@pytest.fixture(params=["local", "remote"])
async def subject(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    behind = local_service()
    if request.param == "local":
        yield Subject(behind, behind)
        return
    async with remote_service(behind) as remote:
        yield Subject(remote, behind)


@pytest.fixture
async def service(subject: Subject) -> MetadataService:
    return subject.service


async def test_a_queue_that_was_made_is_found_as_it_was_made(service: MetadataService) -> None:
    made, is_new = await service.create_queue("default", "q", STREAM)
    assert is_new and (made.tenant, made.name, made.config, made.version) == ("default", "q", STREAM, 1)
    assert (await service.get_queue("default", "q")).value == made
    assert await service.create_queue("default", "q", STREAM) == (made, False)


async def test_what_is_not_there_is_none_and_no_error(service: MetadataService) -> None:
    assert (await service.get_queue("default", "q")).value is None
    assert (await service.get_key("k")).value is None
    assert (await service.get_tenant("acme")).value is None


async def test_another_config_under_a_name_is_a_conflict(service: MetadataService) -> None:
    await service.create_queue("default", "q", STREAM)
    with pytest.raises(Conflict, match="exists with another config"):
        await service.create_queue("default", "q", QueueConfig())


async def test_a_queue_needs_a_tenant_that_is_there(service: MetadataService) -> None:
    with pytest.raises(NotFound, match="acme"):
        await service.create_queue("acme", "q", STREAM)


async def test_a_change_needs_the_version_it_is_based_on(service: MetadataService) -> None:
    made, _ = await service.create_queue("default", "q", QueueConfig())
    wanted = QueueConfig(visibility_timeout_ms=5)
    changed = await service.update_queue("default", "q", wanted, made.version)
    assert changed is not None and (changed.config, changed.version, changed.uid) == (wanted, 2, made.uid)
    assert await service.update_queue("default", "q", QueueConfig(), made.version) is None
    with pytest.raises(QueueNotFound):
        await service.update_queue("default", "other", wanted, 1)


async def test_a_deleted_queue_is_gone_and_its_number_is_not_used_again(service: MetadataService) -> None:
    made, _ = await service.create_queue("default", "q", QueueConfig(partitions=3))
    await service.delete_queue("default", "q")
    assert (await service.get_queue("default", "q")).value is None
    with pytest.raises(QueueNotFound):
        await service.delete_queue("default", "q")
    again, _ = await service.create_queue("default", "q", QueueConfig())
    assert again.uid > made.uid


async def test_keys_come_and_go_with_every_field(service: MetadataService) -> None:
    await service.put_key(KEY)
    changed = msgspec.structs.replace(KEY, previous_sha256=b"\x01", previous_until_ms=3)
    await service.put_key(changed)
    assert (await service.get_key("k1")).value == changed
    assert await service.list_keys() == [changed]
    await service.delete_key("k1")
    assert (await service.get_key("k1")).value is None
    with pytest.raises(NotFound):
        await service.delete_key("k1")


async def test_a_tenant_takes_its_keys_with_it_and_stays_while_it_has_queues(service: MetadataService) -> None:
    tenant, is_new = await service.put_tenant("acme")
    assert is_new and await service.put_tenant("acme") == (tenant, False)
    bounded, _ = await service.put_tenant("acme", Quotas(queues=1))
    assert bounded.quotas.queues == 1 and (await service.get_tenant("acme")).value == bounded
    await service.put_key(msgspec.structs.replace(KEY, tenant="acme"))
    await service.create_queue("acme", "q", QueueConfig())
    with pytest.raises(Conflict, match="still has 1 queues"):
        await service.delete_tenant("acme")
    await service.delete_queue("acme", "q")
    await service.delete_tenant("acme")
    assert (await service.get_tenant("acme")).value is None
    assert (await service.get_key("k1")).value is None
    with pytest.raises(NotFound):
        await service.delete_tenant("acme")


async def test_lists_come_in_pages_in_the_order_of_names(service: MetadataService) -> None:
    for number in (3, 1, 2, 0):
        await service.create_queue("default", f"q{number}", QueueConfig())
        await service.put_tenant(f"t{number}")
        await service.put_key(msgspec.structs.replace(KEY, id=f"k{number}"))
    await service.create_queue("t0", "theirs", QueueConfig())
    assert [queue.name for queue in await service.list_queues("default", limit=3)] == ["q0", "q1", "q2"]
    assert [queue.name for queue in await service.list_queues("default", after="q2")] == ["q3"]
    assert await service.list_queues("default", after="q3") == []
    assert [key.id for key in await service.list_keys(after="k1", limit=1)] == ["k2"]
    assert [tenant.name for tenant in await service.list_tenants(after="default")] == ["t0", "t1", "t2", "t3"]


async def test_a_page_that_no_frame_could_hold_is_shorter(service: MetadataService) -> None:
    config = QueueConfig(tags={"text": "x" * 15_000})
    for number in range(400):  # 6 MB of definitions
        await service.create_queue("default", f"q{number:03}", config)
    names: list[str] = []
    while page := await service.list_queues("default", after=names[-1] if names else ""):
        names += [queue.name for queue in page]
    assert names == [f"q{number:03}" for number in range(400)]


# --------------------------------------------------------------------------------------------------------- watch


async def test_who_watches_hears_of_changes_in_their_order(subject: Subject) -> None:
    async with aclosing(subject.service.watch(None)) as watch:
        begun = await anext(watch)
        assert (begun.changes, begun.is_reset) == ([], False)
        made, _ = await subject.behind.create_queue("default", "q", QueueConfig())
        await subject.behind.update_queue("default", "q", STREAM, made.version)
        await subject.behind.put_key(KEY)
        await subject.behind.put_tenant("acme")
        heard: list[Change] = []
        while len(heard) < 4:
            heard += (await anext(watch)).changes
        queue = Change("queue", "q", "default")
        assert heard == [queue, queue, Change("key", "k1"), Change("tenant", "acme")]


async def test_an_answer_is_as_new_as_the_moment_it_names(subject: Subject) -> None:
    before = (await subject.service.get_queue("default", "q")).at
    await subject.behind.create_queue("default", "q", QueueConfig())
    after = (await subject.service.get_queue("default", "q")).at
    assert after.era == before.era and after.revision == before.revision + 1


async def test_a_quiet_service_sends_heartbeats(subject: Subject) -> None:
    async with aclosing(subject.service.watch(None)) as watch:
        first = await anext(watch)
        second = await asyncio.wait_for(anext(watch), 5)
    assert (second.changes, second.is_reset, second.now) == ([], False, first.now)


async def test_who_was_away_hears_what_happened_meanwhile(subject: Subject) -> None:
    await subject.behind.put_tenant("t0")
    here = (await subject.service.get_tenant("t0")).at
    await subject.behind.put_tenant("t1")
    news = await _first(subject.service, here)
    assert news.changes == [Change("tenant", "t1")] and not news.is_reset
    assert news.now.revision == here.revision + 1


async def test_who_was_away_too_long_must_doubt_everything(subject: Subject) -> None:
    here = (await subject.service.get_tenant("default")).at
    for number in range(CHANGES_KEPT_MAX + 1):
        subject.behind._metadata.changes.add(Change("tenant", f"t{number}"))
    assert (await _first(subject.service, here)).is_reset


async def test_who_comes_from_another_life_of_the_service_must_doubt_everything(subject: Subject) -> None:
    here = (await subject.service.get_tenant("default")).at
    assert (await _first(subject.service, Moment("another era", here.revision))).is_reset


async def test_many_changes_come_in_several_pieces_and_none_is_missing(subject: Subject) -> None:
    here = (await subject.service.get_tenant("default")).at
    wanted = [Change("tenant", f"t{number}") for number in range(CHANGES_PER_TURN_MAX * 2 + 1)]
    for change in wanted:
        subject.behind._metadata.changes.add(change)
    heard: list[Change] = []
    async with aclosing(subject.service.watch(here)) as watch:
        while len(heard) < len(wanted):
            heard += (await anext(watch)).changes
    assert heard == wanted


async def _first(service: MetadataService, after: Moment) -> News:
    async with aclosing(service.watch(after)) as watch:
        return await anext(watch)
