"""What a gateway takes over of a metadata service of several hosts, of which one may not have heard the latest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest

from backend_store.client import ASKED, KIND_JSON
from backend_store.client.metadata import Change, Moment, News, Read
from backend_store.core.log.chunk import Draft
from backend_store.model import Conflict, PushqError, QueueConfig, QueueDefinition, Unavailable
from gateway.admission.dependency_guard import Guard
from gateway.config.settings import CatalogueSettings
from gateway.metadata.remote_store import RemoteStore
from push.delivery.lookup_retry import LookingUp, answered, asks
from tests.support.patience import eventually
from tests.support.stores import opened, published

pytestmark = pytest.mark.anyio

NAME = ("default", "q")


class Hosts:
    """A service whose hosts say one thing, and its coordinator what is true."""

    def __init__(self) -> None:
        self.revision = 1
        self.true: QueueDefinition | None = None
        self.said: Read[QueueDefinition | None] | None = None
        """What a host that is behind says; None: all have heard everything."""
        self.is_away = False
        self.refused = 0
        self.era = "directory/era"
        self.lost = asyncio.Event()
        """Ends the watch."""

    def define(self, uid: int, **config: Any) -> None:
        version = 1 if self.true is None or self.true.uid != uid else self.true.version + 1
        self.true = QueueDefinition(uid, *NAME, QueueConfig(**config), 0, version)
        self.revision += 1

    def now(self) -> Read[QueueDefinition | None]:
        return Read(self.true, Moment(self.era, self.revision))

    async def get_queue(self, tenant: str, name: str, *, is_sure: bool = False) -> Read[QueueDefinition | None]:
        assert (tenant, name) == NAME
        self.check_there()
        return self.now() if is_sure or self.said is None else self.said

    def check_there(self) -> None:
        if self.is_away:
            self.refused += 1
            raise Unavailable("away", retry_after_ms=100)

    async def connected(self, seconds_max: float) -> bool:
        return not self.is_away

    async def watch(self, after: Moment | None) -> AsyncGenerator[News, None]:
        self.check_there()
        self.lost.clear()
        yield News(Moment(self.era, self.revision), is_reset=after is None or after.era != self.era)
        await self.lost.wait()
        raise Unavailable("lost", retry_after_ms=100)

    async def get_key(self, key_id: str) -> Any: ...

    async def get_tenant(self, name: str) -> Any: ...

    async def close(self) -> None: ...


@pytest.fixture
def hosts() -> Hosts:
    return Hosts()


@pytest.fixture
async def store(hosts: Hosts) -> AsyncIterator[RemoteStore]:
    service: Any = hosts
    made = RemoteStore(await opened(), service, Guard("metadata"), Guard("writes"), CatalogueSettings())
    yield made
    await made.close()


async def looked_up(store: RemoteStore) -> Any:
    try:
        return store.queue(*NAME)
    except LookingUp:
        await store.queues_known.ask(NAME).landed()
        return store.queue(*NAME)


def changed(store: RemoteStore, hosts: Hosts) -> None:
    """The news, by a host that has heard."""
    store._changed(Change("queue", NAME[1], NAME[0]), Moment("directory/era", hosts.revision))


async def test_a_changed_queue_is_asked_for_until_a_host_has_heard_of_the_change(
    store: RemoteStore, hosts: Hosts
) -> None:
    hosts.define(1, visibility_timeout_ms=10_000)
    queue = await looked_up(store)
    hosts.said = hosts.now()
    hosts.define(1, visibility_timeout_ms=20_000)
    changed(store, hosts)
    with pytest.raises(PushqError, match="changes too quickly"):
        await looked_up(store)
    hosts.said = None
    assert await looked_up(store) is queue and queue.config.visibility_timeout_ms == 20_000


async def test_a_change_that_could_not_be_looked_up_is_looked_up_when_the_service_is_back(
    store: RemoteStore, hosts: Hosts
) -> None:
    """Who consumes does not look the queue up: it would go by the former settings for ever."""
    hosts.define(1, visibility_timeout_ms=10_000)
    queue = await looked_up(store)
    await store.start(lambda gone: None)
    hosts.is_away = True
    hosts.define(1, visibility_timeout_ms=20_000)
    changed(store, hosts)
    await eventually(lambda: hosts.refused > 0)
    hosts.is_away = False
    await eventually(lambda: queue.config.visibility_timeout_ms == 20_000)


async def test_what_was_deleted_while_nobody_was_here_goes_though_the_service_comes_later(
    store: RemoteStore, hosts: Hosts
) -> None:
    """Nobody looks up what is not there any more."""
    hosts.define(1)
    queue = await looked_up(store)
    await published(queue, Draft(KIND_JSON, b"1", None))
    hosts.true, hosts.revision, hosts.is_away = None, hosts.revision + 1, True
    gone: list[Any] = []
    await store.start(gone.append)
    await eventually(lambda: hosts.refused > 0)
    hosts.is_away = False
    await eventually(lambda: gone == [queue])
    assert not store.node.metadata.queues


async def test_what_was_deleted_while_the_service_was_out_of_sight_goes(store: RemoteStore, hosts: Hosts) -> None:
    """It has begun anew since, and does not know what it told."""
    hosts.define(1)
    queue = await looked_up(store)
    gone: list[Any] = []
    await store.start(gone.append)
    await eventually(lambda: store.follower.resets == 1)
    await store.queues_known.ask(NAME).landed()
    hosts.true, hosts.era = None, "directory/next"
    hosts.lost.set()
    await eventually(lambda: store.follower.resets == 2)
    await eventually(lambda: gone == [queue])


@pytest.mark.parametrize("hears_of_change", [True, False])
async def test_no_message_goes_on_the_word_of_a_host_that_is_behind(
    store: RemoteStore, hosts: Hosts, hears_of_change: bool
) -> None:
    """It has not heard of the queue at all, or of the one before, of the same name."""
    behind = [Read(None, Moment("directory/era", hosts.revision))]
    hosts.define(1)
    behind.append(hosts.now())
    hosts.define(2)
    queue = await looked_up(store)
    await published(queue, Draft(KIND_JSON, b"1", None))
    for said in behind:
        hosts.said = said
        if hears_of_change:
            changed(store, hosts)
        else:
            store.queues_known.cache.drop(NAME)  # as a change from here does
        assert await looked_up(store) is queue
        assert queue.stats().ready == 1
    hosts.said, hosts.true = None, None
    hosts.revision += 1
    changed(store, hosts)
    with pytest.raises(PushqError, match="there is no queue"):
        await looked_up(store)


async def test_a_request_knows_that_its_change_was_made(store: RemoteStore) -> None:
    async def refused() -> None:
        raise Conflict("no")

    async def made() -> None: ...

    token = asks()
    asked = ASKED.get()
    assert token is not None and asked is not None
    with pytest.raises(Conflict):
        await store.write(refused)
    found = [asked.has_changed]
    await store.write(made)
    assert [*found, asked.has_changed] == [False, True]
    answered(token)
