"""The form `ring`: a host forwards a request to a host that keeps the name, and returns its answer.

Where neither host of an arc answers, it asks the coordinator itself. A forwarded request is not forwarded again.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Callable
from typing import Any

from backend_store.cluster.coordinator import boot_seconds
from backend_store.metadata.asking import Asking
from backend_store.metadata.changes import Moment, News
from backend_store.metadata.directory.asked import arc_asked
from backend_store.metadata.directory.limits import HOSTS_MAX, SHUNNED_SECONDS
from backend_store.metadata.directory.service import DirectoryService
from backend_store.metadata.operations import HandedOn, Operation, Reading, Writing, perform
from backend_store.metadata.remote import RemoteMetadata
from backend_store.model import OutcomeUnknown, Overloaded, Unavailable


class Handing(Asking):
    """Implements `MetadataService` and `Directory` over this host's service and those of other hosts. The caller closes
    it."""

    def __init__(
        self,
        own: DirectoryService,
        secret: str,
        tls: ssl.SSLContext | None = None,
        *,
        clock: Callable[[], float] = boot_seconds,
    ) -> None:
        """`tls`: for other hosts whose address is `wss`."""
        self.handed_on = 0
        """How many requests another host answered."""
        self._own = own
        self._secret = secret
        self._tls = tls
        self._clock = clock
        self._others: dict[str, RemoteMetadata] = {}
        self._shunned: dict[str, float] = {}

    async def close(self) -> None:
        await asyncio.gather(*(other.close() for other in self._others.values()))

    async def _ask(self, operation: Operation) -> Any:
        assert isinstance(operation, Reading | Writing), "what was handed on is answered by the own service"
        arc = arc_asked(operation)
        hosts = self._own.ring.hosts_of(arc) if arc is not None else ()
        if arc is None or self._own.store.host in hosts:
            return await perform(self._own, operation)
        for host in hosts:
            other = self._other(self._own.ring.urls[host])
            if other is None:
                continue
            try:
                answer = await other._ask(HandedOn(operation))
                self.handed_on += 1
                return answer
            except (Unavailable, Overloaded):  # also of a write: it was not made
                pass
            except OutcomeUnknown:
                self._shun(self._own.ring.urls[host])
                raise
            self._shun(self._own.ring.urls[host])
        return await perform(self._own, operation)

    def _shun(self, url: str) -> None:
        self._shunned[url] = self._clock() + SHUNNED_SECONDS

    def _other(self, url: str) -> RemoteMetadata | None:
        """None where the host is not connected, or failed recently. Connecting goes on meanwhile."""
        known = self._others.get(url)
        if known is None and len(self._others) < 2 * HOSTS_MAX:
            known = self._others[url] = RemoteMetadata(url, self._secret, self._tls)
        if known is None or not known.is_connected or self._shunned.get(url, 0.0) > self._clock():
            return None
        return known

    def watch(self, after: Moment | None) -> AsyncGenerator[News, None]:
        """Watches this host's own service: every host hears of all changes."""
        return self._own.watch(after)
