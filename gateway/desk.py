"""The desk is the access layer all transports share: authenticates callers, authorizes them for a queue, and encodes
publishes into blocks.

HTTP, WebSocket and SSE call the same methods, so their decisions cannot differ.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from itertools import chain
from math import inf
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from backend_store.client import HybridClock, Queue, Store, unbounded_task
from backend_store.model import (
    Conflict,
    Forbidden,
    QueueConfig,
    QueueNotFound,
    StorageFull,
    Unauthenticated,
    Unavailable,
)
from gateway.identity.authentication import Keyring, Principal, same_caller
from gateway.identity.authorization import Verb
from gateway.identity.tickets import TicketOffice
from gateway.publishing import encode
from gateway.publishing.idempotency_keys import named
from gateway.publishing.idempotent_publish import IdempotentPublish, PublishReply
from gateway.queues.links import check_links
from push.delivery.lookup_retry import LookingUp, found
from push.ports import Encoding, KeyOf, Prepared, Target
from push.protocol import PublishMessage

_LOCALHOSTS = frozenset({"localhost", "127.0.0.1", "::1"})


class GatewayDesk:
    """Implements `push.ports.Desk`."""

    def __init__(
        self,
        store: Store,
        keyring: Keyring,
        tickets: TicketOffice,
        *,
        allowed_origins: Sequence[str],
        dev: bool,
        auto_config: Callable[[str], QueueConfig | None] = lambda name: None,
        once: IdempotentPublish | None = None,
        full: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`auto_config`: the config of the queue that a publish to an unknown name creates, or None. `full`: tenant →
        why it may store no more; the caller keeps this mapping up to date.
        """
        self._full = full
        self._once = IdempotentPublish() if once is None else once
        self._store = store
        self._keyring = keyring
        self._tickets = tickets
        self._allowed_origins = frozenset(allowed_origins)
        self._dev = dev
        self._auto_config = auto_config
        self._clock = HybridClock()
        self._making: dict[tuple[str, str], asyncio.Task[None]] = {}
        """Queues that publishes are creating now, by tenant and name."""

    def identify(self, token: str) -> Principal:
        return self._keyring.identify(token)

    def redeem(self, ticket: str) -> Principal:
        principal = self._tickets.redeem(ticket)
        if not self.still_valid(principal):
            raise Unauthenticated("the key that requested this ticket was revoked or has expired")
        return principal

    def is_same_caller(self, known: Any, newer: Any) -> bool:
        return same_caller(known, newer)

    def has_expired(self, principal: Any) -> bool:
        return self._keyring.has_expired(principal)

    def still_valid(self, principal: Any) -> bool:
        try:
            return self._keyring.still_valid(principal)
        except LookingUp as looking:
            return looking.may_go_on  # the next check knows more

    def queue(self, principal: Any, name: str, verb: Verb) -> Queue:
        queue = self._store.queue(principal.tenant, name)
        if not principal.access.may(verb, name):
            raise Forbidden(f"the key {principal.name!r} lacks the scope {verb}:{name}")
        return queue

    def publish_to(self, principal: Any, name: str) -> Target:
        """The queue; for one that was deleted lately, the target its messages went to.

        Raises `QueueNotFound` for a queue that a publish is still creating: its definition exists before its data key
        does. Raises `Forbidden` without the scope, `StorageFull` if the tenant may store no more.
        """
        if self._making and (principal.tenant, name) in self._making:
            raise QueueNotFound(f"queue {name!r} is being created")
        queue = self._store.target_of(principal.tenant, name)
        self._check_publish(principal, name)
        return queue

    def publish_with_ack(self, principal: Any, name: str) -> Queue:
        queue = self._store.queue(principal.tenant, name)
        self._check_publish(principal, name)
        return queue

    def _check_publish(self, principal: Any, name: str) -> None:
        if not principal.access.may("publish", name):
            raise Forbidden(f"the key {principal.name!r} lacks the scope publish:{name}")
        if principal.tenant in self._full:
            raise StorageFull(self._full[principal.tenant])

    def made_by_publish(self, principal: Any, name: str, until: float) -> Coroutine[Any, Any, None] | None:
        if not principal.access.may("publish", name):
            return None
        config = self._auto_config(name)
        return self._made(principal.tenant, name, config, until) if config is not None else None

    async def _made(self, tenant: str, name: str, config: QueueConfig, until: float) -> None:
        """Waits until the queue exists. Concurrent publishes share one task that creates it, which a caller's
        cancellation does not stop. Raises `Unavailable` after `until`."""
        making = self._making.get((tenant, name))
        if making is None:
            making = unbounded_task(self._make(tenant, name, config), name=f"make {name}")
            self._making[tenant, name] = making
            making.add_done_callback(lambda done: self._is_made(tenant, name, done))
        try:
            async with asyncio.timeout_at(None if until == inf else until):
                await asyncio.shield(making)
        except TimeoutError:
            detail = f"queue {name!r} was not created within the publish timeout; nothing was accepted"
            raise Unavailable(detail, retry_after_ms=1000) from None

    def _is_made(self, tenant: str, name: str, done: asyncio.Task[None]) -> None:
        del self._making[tenant, name]
        if not done.cancelled():
            done.exception()  # raised in callers that wait; retrieved here in case no caller waits any more

    async def _make(self, tenant: str, name: str, config: QueueConfig) -> None:
        await found(lambda: check_links(name, config, lambda other: self._config_of(tenant, other)))
        try:
            await self._store.create_queue(tenant, name, config)
        except Conflict:
            if self._config_of(tenant, name) is None:
                raise  # no more queues are allowed; without this the publish would try again for ever
            # Another caller created the queue with another config meanwhile, which is as good.

    def _config_of(self, tenant: str, name: str) -> QueueConfig | None:
        try:
            return self._store.queue(tenant, name).config
        except QueueNotFound:
            return None

    def prepare(
        self,
        queue: Target,
        messages: Sequence[PublishMessage],
        encoding: Encoding,
        trace: str | None = None,
        key_of: KeyOf | None = None,
    ) -> Prepared:
        prepared = encode.prepare(
            queue.config,
            messages,
            encoding,
            trace,
            now_ms=queue.steady_ms(),
            clock=self._clock,
            encode=queue.blocks,
            content_key=lambda: queue.content_key,
            name=partial(named, queue, key_of) if key_of is not None else None,
        )
        return _sealed(queue, prepared)

    def publish_once(self, queue: Target, prepared: Prepared, reply: PublishReply) -> None:
        self._once.publish(queue, prepared, reply)

    def prepare_plain(
        self,
        queue: Target,
        bodies: Sequence[Any],
        encoding: Encoding,
        trace: str | None = None,
        key_of: KeyOf | None = None,
    ) -> Prepared:
        prepared = encode.prepare_plain(
            queue.config,
            bodies,
            encoding,
            trace,
            now_ms=queue.steady_ms(),
            clock=self._clock,
            encode=queue.blocks,
            content_key=lambda: queue.content_key,
            name=partial(named, queue, key_of) if key_of is not None else None,
            is_split=queue.is_split,
        )
        return _sealed(queue, prepared)

    def prepare_together(
        self, queue: Target, calls: Sequence[Sequence[Any]], encoding: Encoding
    ) -> tuple[Prepared, int] | None:
        if queue.is_split or encode.looks_at_calls(queue.config):
            return None
        bodies = list(chain.from_iterable(calls))
        prepared = self.prepare_plain(queue, bodies, encoding)
        return prepared, encode.size_apart(prepared.blocks, bodies, len(calls))

    def allowed_origin(self, origin: str | None, host: str | None) -> bool:
        """Whether the origin is the same, in the configured list, or under `--dev` any page of this machine. None means
        that the caller is no browser: allowed."""
        if origin is None or origin in self._allowed_origins or "*" in self._allowed_origins:
            return True
        try:
            page = urlsplit(origin)
            hostname = page.hostname or ""
        except ValueError:
            return False
        if page.scheme not in ("http", "https"):
            return False
        if host is not None and page.netloc.lower() == host.lower():
            return True
        return self._dev and (hostname in _LOCALHOSTS or hostname.endswith(".localhost"))


def _sealed(queue: Target, prepared: Prepared) -> Prepared:
    blocks = queue.sealed(prepared.blocks)
    return prepared if blocks is prepared.blocks else Prepared(blocks, prepared.ids, prepared.order, prepared.claim)
