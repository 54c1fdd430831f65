"""One set of promises over every metadata service: in the process of its caller, behind a socket, over a coordinator.

Over a coordinator, embedded or a real etcd, what "another gateway changes" is changed at another host.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from backend_store.cluster.coordinator import Coordinator
from backend_store.cluster.core.values import Put, Transaction
from backend_store.metadata.changes import Change, Moment, News
from backend_store.metadata.directory.core.names import queue_key
from backend_store.metadata.directory.service import open_directory
from backend_store.metadata.limits import CHANGES_KEPT_MAX, CHANGES_PER_TURN_MAX
from backend_store.metadata.service import MetadataService
from backend_store.model import (
    ONE_NODE,
    ApiKey,
    Conflict,
    NotFound,
    QueueConfig,
    QueueDefinition,
    QueueNotFound,
    Quotas,
)
from tests.support.coordinators import open_folder, over_etcd
from tests.support.metadata import local_service, remote_service
from tests.support.patience import eventually

pytestmark = pytest.mark.anyio

KEY = ApiKey("k1", "name", "default", ("publish:*",), b"\x00\xff", 7, expires_at_ms=9)
STREAM = QueueConfig(kind="stream", tags={"a": "b"})


@dataclass
class Subject:
    service: MetadataService
    behind: MetadataService
    """What another gateway changes is changed here."""
    add: Callable[[Sequence[Change]], None]
    """Writes into the log of what happened."""


@pytest.fixture(params=["local", "remote", "directory embedded", "directory etcd"])
async def subject(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Subject]:
    if request.param == "directory embedded":
        host = open_folder(tmp_path / "data")
        try:
            async with two_hosts(host.coordinator, host.coordinator) as subject:
                yield subject
        finally:
            await host.close()
        return
    if request.param == "directory etcd":
        endpoints = request.getfixturevalue("etcd").endpoints
        namespace = f"{uuid.uuid4()}/".encode()
        async with (
            over_etcd(*endpoints, namespace=namespace) as one,
            over_etcd(*endpoints, namespace=namespace) as two,
            two_hosts(one, two) as subject,
        ):
            yield subject
        return
    behind = local_service()

    def add(changes: Sequence[Change]) -> None:
        for change in changes:
            behind._metadata.changes.add(change)

    if request.param == "local":
        yield Subject(behind, behind, add)
        return
    async with remote_service(behind) as remote:
        yield Subject(remote, behind, add)


@asynccontextmanager
async def two_hosts(here: Coordinator, there: Coordinator) -> AsyncIterator[Subject]:
    async with open_directory(here, host="here") as service, open_directory(there, host="there") as behind:
        history = service.store.history

        def add(changes: Sequence[Change]) -> None:
            for change in changes:
                history.add(history.revision + 1, [change])

        yield Subject(service, behind, add)


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
    with pytest.raises(
        Conflict, match="already exists with another config: kind, max_attempts, tags; change it with PATCH"
    ):
        await service.create_queue("default", "q", QueueConfig(max_attempts=3))


async def test_one_copy_of_which_earlier_versions_speak_is_no_other_config(service: MetadataService) -> None:
    before = msgspec.structs.replace(STREAM, replication=ONE_NODE)
    made, _ = await service.create_queue("default", "q", before)
    assert made.config == STREAM
    for config in (before, STREAM):
        assert await service.create_queue("default", "q", config) == (made, False)
    changed = await service.update_queue("default", "q", msgspec.structs.replace(before, max_attempts=3), 1)
    assert changed is not None and changed.config == msgspec.structs.replace(STREAM, max_attempts=3)


async def test_a_queue_of_an_earlier_version_at_a_coordinator_is_made_again_as_it_is(tmp_path: Path) -> None:
    host = open_folder(tmp_path / "data")
    try:
        async with two_hosts(host.coordinator, host.coordinator) as subject:
            config = msgspec.structs.replace(STREAM, replication=ONE_NODE)
            known = QueueDefinition(7, "default", "q", config, 1, 1)
            row = Put(queue_key("default", "q"), msgspec.msgpack.encode(known))
            await host.coordinator.transact(Transaction((), (row,)))
            found, is_new = await subject.service.create_queue("default", "q", STREAM)
            assert (found.uid, is_new) == (7, False)
            with pytest.raises(Conflict, match="already exists with another config: max_attempts;"):
                await subject.service.create_queue("default", "q", msgspec.structs.replace(STREAM, max_attempts=3))
    finally:
        await host.close()


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


async def test_a_queue_knows_whether_its_messages_were_always_encrypted(service: MetadataService) -> None:
    sealed, plain = QueueConfig(), QueueConfig(encrypted=False)
    always, _ = await service.create_queue("default", "always", sealed)
    other, _ = await service.create_queue("default", "other", plain)
    assert (always.was_plain, other.was_plain) == (False, True)
    told: list[bool] = [always.is_always_sealed, other.is_always_sealed]
    for one, configs in ((always, (QueueConfig(max_attempts=3), plain, sealed)), (other, (sealed,))):
        for config in configs:
            changed = await service.update_queue("default", one.name, config, one.version)
            assert changed is not None
            one = changed
            told.append(one.is_always_sealed)
    assert told == [True, False, True, False, False, False]


def test_of_a_definition_from_before_its_first_config_tells() -> None:
    before = QueueDefinition(uid=1, tenant="t", name="q", config=QueueConfig(), created_at_ms=1, version=1)
    assert before.is_always_sealed and before.changed(QueueConfig(max_attempts=3)).is_always_sealed
    assert not msgspec.structs.replace(before, version=2).is_always_sealed
    assert not msgspec.structs.replace(before, version=2).changed(QueueConfig(max_attempts=3)).is_always_sealed
    assert not before.changed(QueueConfig(encrypted=False)).changed(QueueConfig()).is_always_sealed


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
    await service.put_key(changed, instead_of=KEY)
    with pytest.raises(Conflict, match="key 'k1' already exists"):
        await service.put_key(KEY)
    assert (await service.get_key("k1")).value == changed
    assert await service.list_keys() == [changed]
    await service.delete_key("k1")
    assert (await service.get_key("k1")).value is None
    with pytest.raises(NotFound):
        await service.delete_key("k1")


async def test_a_key_that_has_gone_or_was_changed_is_not_written_again(service: MetadataService) -> None:
    await service.put_key(KEY)
    one, two = (msgspec.structs.replace(KEY, secret_sha256=secret) for secret in (b"1", b"2"))
    ends = await asyncio.gather(*(service.put_key(k, instead_of=KEY) for k in (one, two)), return_exceptions=True)
    assert sorted(type(end) for end in ends if end is not None) == [Conflict]
    (kept,) = await service.list_keys()
    assert kept in (one, two)
    await service.put_key(kept, instead_of=KEY)  # asked again after an answer was lost
    await service.delete_key("k1")
    with pytest.raises(NotFound):
        await service.put_key(msgspec.structs.replace(kept, secret_sha256=b"3"), instead_of=kept)
    assert await service.list_keys() == []


async def test_two_operators_who_delete_each_other_at_once_leave_one(subject: Subject) -> None:
    operators = [ApiKey(f"o{number}", "name", "default", ("operator",), b"", 7) for number in range(2)]
    for key in (KEY, *operators):
        await subject.service.put_key(key)
    deletions = (one.delete_key(key.id) for one, key in zip((subject.service, subject.behind), operators, strict=True))
    ends = await asyncio.gather(*deletions, return_exceptions=True)
    assert sorted(type(end) for end in ends if end is not None) == [Conflict]
    (left,) = [key for key in await subject.behind.list_keys() if key.scopes == ("operator",)]
    with pytest.raises(Conflict, match="last key with the scope operator"):
        await subject.behind.delete_key(left.id)


async def test_a_tenant_with_the_last_operator_stays(service: MetadataService) -> None:
    await service.put_tenant("acme")
    await service.put_key(ApiKey("o1", "name", "acme", ("admin", "operator"), b"", 7))
    with pytest.raises(Conflict, match="last key with the scope operator"):
        await service.delete_tenant("acme")
    await service.put_key(ApiKey("o2", "name", "default", ("operator",), b"", 7))
    await service.delete_tenant("acme")
    assert [key.id for key in await service.list_keys()] == ["o2"]


async def test_a_tenant_takes_its_keys_with_it_and_stays_while_it_has_queues(service: MetadataService) -> None:
    tenant, is_new = await service.put_tenant("acme")
    assert is_new and await service.put_tenant("acme") == (tenant, False)
    bounded, _ = await service.put_tenant("acme", Quotas(queues=1))
    assert bounded.quotas.queues == 1 and (await service.get_tenant("acme")).value == bounded
    await service.put_key(msgspec.structs.replace(KEY, tenant="acme"))
    await service.create_queue("acme", "q", QueueConfig())
    with pytest.raises(Conflict, match="still has 1 queue"):
        await service.delete_tenant("acme")
    await service.delete_queue("acme", "q")
    await service.delete_tenant("acme")
    assert (await service.get_tenant("acme")).value is None
    assert (await service.get_key("k1")).value is None
    with pytest.raises(NotFound):
        await service.delete_tenant("acme")


async def test_of_two_changes_of_one_state_of_a_tenant_the_second_is_refused(subject: Subject) -> None:
    tenant, _ = await subject.service.put_tenant("acme")
    first, _ = await subject.service.put_tenant("acme", Quotas(queues=1), instead_of=tenant)
    assert await subject.service.put_tenant("acme", Quotas(queues=1), instead_of=tenant) == (first, False), "repeated"
    with pytest.raises(Conflict, match="changed meanwhile"):
        await subject.behind.put_tenant("acme", Quotas(queues=2), instead_of=tenant)
    assert (await subject.service.get_tenant("acme")).value == first
    await subject.service.delete_tenant("acme")
    with pytest.raises(Conflict, match="changed meanwhile"):
        await subject.service.put_tenant("acme", Quotas(queues=2), instead_of=first)


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
    config = QueueConfig(tags={"text": "x" * 100_000})
    for number in range(50):  # 5 MB of definitions, a frame has 4
        await service.create_queue("default", f"q{number:03}", config)
    names: list[str] = []
    while page := await service.list_queues("default", after=names[-1] if names else ""):
        names += [queue.name for queue in page]
    assert names == [f"q{number:03}" for number in range(50)]


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

    async def is_there() -> bool:
        return (await subject.service.get_queue("default", "q")).value is not None

    await eventually(is_there)
    after = (await subject.service.get_queue("default", "q")).at
    assert after.era == before.era and after.revision > before.revision


async def test_a_quiet_service_sends_heartbeats(subject: Subject) -> None:
    async with aclosing(subject.service.watch(None)) as watch:
        first = await anext(watch)
        second = await asyncio.wait_for(anext(watch), 5)
    assert (second.changes, second.is_reset, second.now) == ([], False, first.now)


async def test_who_was_away_hears_what_happened_meanwhile(subject: Subject) -> None:
    await subject.behind.put_tenant("t0")
    here = (await subject.service.get_tenant("t0")).at
    await subject.behind.put_tenant("t1")
    told: list[Change] = []
    async with aclosing(subject.service.watch(here)) as watch:
        while Change("tenant", "t1") not in told:
            news = await anext(watch)
            assert not news.is_reset
            told += news.changes
    assert set(told) <= {Change("tenant", "t0"), Change("tenant", "t1")}
    assert news.now.revision > here.revision


async def test_who_was_away_too_long_must_doubt_everything(subject: Subject) -> None:
    here = (await subject.service.get_tenant("default")).at
    subject.add([Change("tenant", f"t{number}") for number in range(CHANGES_KEPT_MAX + 1)])
    assert (await _first(subject.service, here)).is_reset


async def test_who_comes_from_another_life_of_the_service_must_doubt_everything(subject: Subject) -> None:
    here = (await subject.service.get_tenant("default")).at
    assert (await _first(subject.service, Moment("another era", here.revision))).is_reset


async def test_many_changes_come_in_several_pieces_and_none_is_missing(subject: Subject) -> None:
    here = (await subject.service.get_tenant("default")).at
    wanted = [Change("tenant", f"t{number}") for number in range(CHANGES_PER_TURN_MAX * 2 + 1)]
    subject.add(wanted)
    heard: list[Change] = []
    async with aclosing(subject.service.watch(here)) as watch:
        while len(heard) < len(wanted):
            heard += (await anext(watch)).changes
    assert heard == wanted


async def test_a_quota_holds_and_a_deleted_queue_makes_room(service: MetadataService) -> None:
    await service.put_tenant("acme", Quotas(queues=2))
    for name in ("a", "b"):
        await service.create_queue("acme", name, QueueConfig())
    with pytest.raises(Conflict, match="its quota is 2"):
        await service.create_queue("acme", "c", QueueConfig())
    await service.delete_queue("acme", "a")
    assert (await service.create_queue("acme", "c", QueueConfig()))[1]


async def test_two_hosts_at_once_keep_quotas_and_give_no_number_twice(subject: Subject) -> None:
    await subject.service.put_tenant("acme", Quotas(queues=5))
    makers = [
        asyncio.ensure_future(host.create_queue("acme", f"q{number}", QueueConfig()))
        for number in range(5)
        for host in (subject.service, subject.behind)
    ]
    more = [asyncio.ensure_future(subject.behind.create_queue("acme", f"more{n}", QueueConfig())) for n in range(3)]
    made = await asyncio.gather(*makers, *more, return_exceptions=True)
    news = [one[0] for one in made if not isinstance(one, BaseException) and one[1]]
    assert len(news) == 5 and len({queue.uid for queue in news}) == 5
    assert all(isinstance(one, Conflict) for one in made if isinstance(one, BaseException))
    assert len(await subject.behind.list_queues("acme")) == 5


async def _first(service: MetadataService, after: Moment) -> News:
    async with aclosing(service.watch(after)) as watch:
        return await anext(watch)
