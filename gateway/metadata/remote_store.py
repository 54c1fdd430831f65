"""A store whose messages are in this process and whose queue definitions, API keys and tenants are in a metadata
service.

A queue is adopted the first time it is looked up: its definition is stored beside its partitions, with the uid that the
service gave it. From then on it is served locally; the catalogue limits for how long without news from the service. A
queue that the service no longer has is deleted with its messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar

import structlog

from backend_store.client import Queue, Store, changed
from backend_store.client.metadata import Change, Definitions, DirectoryClient, Moment, Read, RemoteMetadata, Tenant
from backend_store.model import (
    ONE_NODE,
    ApiKey,
    Conflict,
    InvalidRequest,
    OutcomeUnknown,
    PushqError,
    QueueConfig,
    QueueDefinition,
    QueueNotFound,
    Unavailable,
    placed,
)
from gateway.admission.dependency_guard import Guard, Guards, GuardSettings
from gateway.config.settings import CatalogueSettings, Settings
from gateway.identity.authorization import owner_of
from gateway.limits import (
    CATALOGUE_FLIGHTS_MAX,
    CATALOGUE_KEYS_MAX,
    CATALOGUE_QUEUES_MAX,
    CATALOGUE_TENANTS_MAX,
    CATALOGUE_WAIT_SECONDS,
    CATALOGUE_WRITE_SECONDS,
)
from gateway.listener.certificates import OwnCertificates
from gateway.metadata.catalog import Catalog, Follower
from gateway.metadata.identity_lookup import RemoteDefinitions
from gateway.metadata.listing import Lists
from gateway.roles.metadata_listener import files_of, tls_of_client
from push.delivery.lookup_retry import LookingUp, outcome

log = structlog.get_logger("pushq.catalogue")

T = TypeVar("T")
V = TypeVar("V")
Name = tuple[str, str]
IN_DOUBT_AT_ONCE_MAX: Final = CATALOGUE_FLIGHTS_MAX // 10


class RemoteStore(Store):
    """The store of a folder with the definitions of a metadata service. `start` begins to follow the service, `close`
    ends that, too."""

    def __init__(
        self,
        store: Store,
        service: RemoteMetadata | DirectoryClient,
        look_ups: Guard,
        writes: Guard,
        settings: CatalogueSettings,
    ) -> None:
        super().__init__(store.node)
        self._service = service
        self._writes = writes
        self._adopting = asyncio.Lock()
        self._on_deleted: Callable[[Queue], None] = lambda queue: None
        clock_ms, stale_ms = self.steady_ms, settings.stale_max_s * 1000
        self.queues_known: Catalog[Name, QueueDefinition] = Catalog(
            "queue",
            self._fetch_queue,
            look_ups,
            entries_max=CATALOGUE_QUEUES_MAX,
            stale_ms_max=stale_ms,
            clock_ms=clock_ms,
        )
        identity_ms = settings.identity_stale_max_s * 1000
        self.keys_known: Catalog[str, ApiKey] = Catalog(
            "API key",
            service.get_key,
            look_ups,
            entries_max=CATALOGUE_KEYS_MAX,
            stale_ms_max=identity_ms,
            clock_ms=clock_ms,
        )
        self.tenants_known: Catalog[str, Tenant] = Catalog(
            "tenant",
            service.get_tenant,
            look_ups,
            entries_max=CATALOGUE_TENANTS_MAX,
            stale_ms_max=identity_ms,
            clock_ms=clock_ms,
        )
        self.lists = Lists(clock_ms)
        caches: list[Any] = [known.cache for known in self.catalogues]
        self.follower = Follower(
            service,
            caches,
            self._changed,
            clock_ms=clock_ms,
            lost_sight=lambda: self._doubt(*self.node.metadata.queues),
        )
        self._definitions = RemoteDefinitions(self, service, self.node.metadata)
        self._tasks: list[asyncio.Task[None]] = []
        self._in_doubt: dict[Name, int] = {}
        """Local queues that may have changed and must be confirmed by the service → number of the doubt, as a newer one
        may arise while an answer is awaited."""
        self._doubts = 0
        self._doubted = asyncio.Event()

    @property
    def catalogues(self) -> tuple[Catalog[Any, Any], ...]:
        return self.queues_known, self.keys_known, self.tenants_known

    @property
    def metadata(self) -> Definitions:
        return self._definitions

    async def start(self, on_deleted: Callable[[Queue], None]) -> None:
        """Starts to watch the service. Once it is heard, all local queues are looked up, to learn of changes made while
        this process was down.

        `on_deleted` is called for queues that the service no longer has. Continues after `CATALOGUE_WAIT_SECONDS`
        without the service.
        """
        if not await self._service.connected(CATALOGUE_WAIT_SECONDS):
            log.warning("the metadata service is not available yet; requests that need it are refused")
        self._on_deleted = on_deleted
        loop = asyncio.get_running_loop()
        self._tasks.append(loop.create_task(self.follower.run(), name="metadata watch"))
        self._tasks.append(loop.create_task(self._make_sure(), name="metadata in doubt"))

    async def close(self, sessions: Any = None) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for known in self.catalogues:
            await known.close()
        await self.lists.close()
        await self._service.close()
        await super().close(sessions)

    # ------------------------------------------------------------------------------------------------- looking up

    def queue(self, tenant: str, name: str) -> Queue:
        """The queue, if the service has it. Raises `QueueNotFound`, and `LookingUp`."""
        if self.queues_known.find((tenant, owner_of(name))) is None:
            raise QueueNotFound(f"there is no queue {name!r}")
        return self.here(tenant, name)

    def tenant(self, name: str) -> Tenant | None:
        try:
            return self.tenants_known.find(name)
        except LookingUp:
            return self.tenants_known.cache.last(name)

    def tenants(self) -> list[Tenant]:
        return self.tenants_known.cache.values()

    def names(self, tenant: str | None = None) -> Iterator[Name]:
        """Names of one tenant's queues in the service, and of local companions; without a tenant, of all local
        queues."""
        here = set(super().names(tenant))
        if tenant is not None:
            page = partial(self._service.list_queues, tenant)
            listed = self.lists.all(f"queues of {tenant}", lambda after: page(after=after), lambda queue: queue.name)
            companions = {name for name in here if owner_of(name[1]) != name[1]}
            here = {(tenant, name) for name in listed} | companions
        yield from here

    async def _fetch_queue(self, name: Name) -> Read[QueueDefinition | None]:
        doubt = self._in_doubt.get(name)
        read = await self._service.get_queue(*name)
        known = self.node.metadata.queues.get(name)
        if known is not None and (read.value is None or read.value.uid != known.uid):
            # The local messages would be deleted: ask for a confirmed answer, as this host may lag behind others.
            read = await self._service.get_queue(*name, is_sure=True)
        if not self.queues_known.cache.is_overtaken(name, read.at):
            await self._adopt(name, read.value, read.at)
            if self._in_doubt.get(name) == doubt:
                self._in_doubt.pop(name, None)
        return read

    def _changed(self, change: Change, at: Moment) -> None:
        now_ms = self.steady_ms()
        self.lists.changed()
        match change.subject:
            case "queue":
                name = change.tenant, change.name
                self.queues_known.cache.changed(name, at, now_ms)
                if name in self.node.metadata.queues:
                    # It may have consumers, which must not wait until a caller looks it up.
                    self._doubt(name)
                    self.queues_known.ask(name)
            case "key":
                self.keys_known.cache.changed(change.name, at, now_ms)
            case "tenant":
                self.tenants_known.cache.changed(change.name, at, now_ms)
            case "placement":
                pass  # a server with its own messages needs no placements

    def _doubt(self, *names: Name) -> None:
        self._doubts += 1
        self._in_doubt.update(dict.fromkeys(names, self._doubts))
        self._doubted.set()

    async def _make_sure(self) -> None:
        """Looks up queues in doubt until the service has answered for each; one at a time while it does not answer."""
        at_once = IN_DOUBT_AT_ONCE_MAX
        while True:
            await self._doubted.wait()
            self._doubted.clear()
            while names := list(islice(self._in_doubt, at_once)):
                here = [name for name in names if name in self.node.metadata.queues]
                await asyncio.gather(*(outcome(self.queues_known.ask(name)) for name in here))
                for name in names:
                    doubt = self._in_doubt.pop(name, None)
                    if doubt is not None and name in self.node.metadata.queues:
                        self._in_doubt[name] = doubt  # behind the others
                is_answered = any(name not in self._in_doubt for name in names)
                at_once = IN_DOUBT_AT_ONCE_MAX if is_answered else 1
                if not is_answered:
                    await asyncio.sleep(CATALOGUE_WAIT_SECONDS)

    # ------------------------------------------------------------------------------------------------- taking over

    async def _adopt(self, name: Name, definition: QueueDefinition | None, at: Moment) -> None:
        """Applies the service's definition to the local store: adopts, reconfigures or deletes the queue."""
        metadata = self.node.metadata
        async with self._adopting:
            await self._check_identity(at)
            known = metadata.queues.get(name)
            if known is not None and (definition is None or definition.uid != known.uid):
                await self._discard(name)
                known = None
            if definition is not None and await metadata.adopt(definition):
                await self._seal_ready(definition)
                if known is not None:
                    self.configured(definition)

    async def _check_identity(self, at: Moment) -> None:
        """Raises `PushqError` if the answer is from another metadata service than the folder's: queues that it does not
        know must not be taken for deleted ones."""
        identity = at.era.partition("/")[0]
        try:
            await self.node.metadata.adopt_from(identity)
        except Conflict as error:
            log.error("the metadata service is not the one this folder belongs to", detail=error.detail)
            detail = f"metadata.url points to a different metadata service: {error.detail}"
            raise PushqError(detail, code="unavailable") from None  # it answers, so its circuit stays closed

    async def _discard(self, name: Name) -> None:
        log.info("a queue was deleted elsewhere", tenant=name[0], queue=name[1])
        gone = await super().delete_queue(*name)
        for one in (gone, *gone.companions):
            self._on_deleted(one)

    # ---------------------------------------------------------------------------------------------------- changing

    async def write(self, do: Callable[[], Awaitable[T]]) -> T:
        """Makes a change at the service. Raises the service's refusal, `Unavailable`, and `OutcomeUnknown`."""
        try:
            result = await self._writes.call(do, deadline_s=CATALOGUE_WRITE_SECONDS)
            changed()
            return result
        finally:
            self.lists.changed()

    async def create_queue(self, tenant: str, name: str, config: QueueConfig) -> tuple[Queue, bool]:
        config = placed(config, ONE_NODE, name)
        _, created = await self._change_queue(tenant, name, lambda: self._service.create_queue(tenant, name, config))
        return self.here(tenant, name), created

    async def update_queue(self, tenant: str, name: str, config: QueueConfig, version: int) -> Queue | None:
        config = placed(config, ONE_NODE, name)
        changed = await self._change_queue(
            tenant, name, lambda: self._service.update_queue(tenant, name, config, version)
        )
        return self.here(tenant, name) if changed is not None else None

    async def delete_queue(self, tenant: str, name: str) -> Queue:
        queue = self.queue(tenant, name)
        after = ""
        while page := await self._service.list_queues(tenant, after=after):
            after = page[-1].name
            for other in page:
                if other.name != name and name in (other.config.dead_letter_queue, other.config.colocate_with):
                    raise Conflict(f"queue {other.name!r} uses {name!r}; change or delete it first")
        await self._change_queue(tenant, name, lambda: self._service.delete_queue(tenant, name))
        return queue

    async def move_queue(self, tenant: str, name: str, target: str) -> Queue:
        raise InvalidRequest(
            "with metadata.url, this version cannot move a deleted queue's messages; consume or discard them"
        )

    async def _change_queue(self, tenant: str, name: str, do: Callable[[], Awaitable[T]]) -> T:
        """Makes a change to a queue and looks the queue up again, so that later look-ups see the change."""
        key, done = (tenant, name), False
        try:
            result = await self.write(do)
            done = True
        finally:
            self.queues_known.cache.drop(key)
            flight = self.queues_known.ask(key)
            if not done:  # changed or not, the queue's current state is known here before the error is raised
                with suppress(PushqError):
                    await flight.landed()
        try:
            await flight.landed()
        except PushqError as error:
            raise OutcomeUnknown(f"queue {name!r} was changed, but could not be read back: {error.detail}") from None
        return result


def remote_store(store: Store, settings: Settings, guards: Guards, own: OwnCertificates) -> RemoteStore:
    """The store of a folder with the definitions of the configured metadata service. Raises `OSError` if the secret
    cannot be read, and `CannotStart` if the TLS files do not load.
    """
    at = settings.metadata
    secret = Path(at.secret_file).read_text().strip()
    urls = [url.strip() for url in at.url.split(",")]
    tls = tls_of_client(files_of(at.tls_cert, at.tls_key, at.tls_ca), own)
    is_one = len(urls) == 1 and at.form == "replicated"
    unwell = GuardSettings(failures=(OSError, Unavailable))
    return RemoteStore(
        store,
        RemoteMetadata(urls[0], secret, tls)
        if is_one
        else DirectoryClient(urls, secret, at.form, zone=settings.node.zone, tls=tls),
        guards.guard("metadata", unwell),
        # A guard of their own: changes wait longer than look-ups and must not take the places of those.
        guards.guard("metadata_writes", unwell),
        settings.catalogue,
    )
