"""The client of a directory: asks one of several hosts, of which some may be gone.

In the form `sharded` the ring says which host to ask for a name; in the other forms any host answers. Of hosts that
serve equally, one in the caller's zone comes first. A host that did not answer is asked last for a while. A read goes
on to the next host; a write does so only where it was surely not made.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any, Final, Literal

from backend_store.cluster.coordinator import boot_seconds
from backend_store.metadata.asking import Asking
from backend_store.metadata.changes import Moment, News
from backend_store.metadata.directory.asked import arc_asked
from backend_store.metadata.directory.core.ring import NO_RING, Ring
from backend_store.metadata.directory.limits import RING_ASKED_SECONDS, SHUNNED_SECONDS
from backend_store.metadata.operations import GetRing, Operation
from backend_store.metadata.remote import RemoteMetadata
from backend_store.model import Overloaded, PushqError, Unavailable

Form = Literal["replicated", "sharded", "ring"]
FORMS: Final[tuple[Form, ...]] = ("replicated", "sharded", "ring")


class DirectoryClient(Asking):
    """Implements `MetadataService` and `Directory`. The caller closes it."""

    def __init__(
        self,
        urls: Sequence[str],
        secret: str,
        form: Form = "replicated",
        *,
        zone: str = "",
        tls: ssl.SSLContext | None = None,
        clock: Callable[[], float] = boot_seconds,
    ) -> None:
        """`zone`: the caller's; "" prefers no host. `tls`: for hosts whose address is `wss`."""
        self.ring: Ring = NO_RING
        self._hosts = {url: RemoteMetadata(url, secret, tls) for url in dict.fromkeys(urls)}
        self._zone = zone
        self._shunned: dict[str, float] = {}
        self._clock = clock
        self._asker: asyncio.Task[None] | None = None
        if form == "sharded":
            self._asker = asyncio.get_running_loop().create_task(self._ask_for_ring(), name="directory ring")

    @property
    def is_connected(self) -> bool:
        return any(host.is_connected for host in self._hosts.values())

    async def connected(self, seconds_max: float) -> bool:
        """Whether there is a connection to any host now, or within that time."""
        waits = [asyncio.ensure_future(host.connected(seconds_max)) for host in self._hosts.values()]
        try:
            for done in asyncio.as_completed(waits):
                if await done:
                    return True
            return False
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def close(self) -> None:
        if self._asker is not None:
            self._asker.cancel()
            await asyncio.gather(self._asker, return_exceptions=True)
        await asyncio.gather(*(host.close() for host in self._hosts.values()))

    def _order(self, arc: int | None) -> list[str]:
        """The order in which hosts are asked: the hosts that keep the arc, then the others, in each group those of this
        zone first; hosts that are not connected, or failed recently, come last."""
        keepers = [self.ring.urls[name] for name in self.ring.hosts_of(arc)] if arc is not None else []
        now = self._clock()

        def rank(url: str) -> tuple[bool, bool, bool, bool, int]:
            host, is_shunned = self._hosts[url], self._shunned.get(url, 0.0) > now
            place = keepers.index(url) if url in keepers else len(keepers)
            is_near = bool(self._zone) and host.zone == self._zone
            return not host.is_connected, is_shunned, url not in keepers, not is_near, place

        return sorted(self._hosts, key=rank)

    async def _ask(self, operation: Operation) -> Any:
        refused: PushqError | None = None
        for url in self._order(arc_asked(operation)):
            try:
                return await self._hosts[url]._ask(operation)
            except (Unavailable, Overloaded) as error:  # also of a write: it was not made
                self._shunned[url] = self._clock() + SHUNNED_SECONDS
                refused = error
            except PushqError as error:
                if error.code == "outcome-unknown":
                    self._shunned[url] = self._clock() + SHUNNED_SECONDS
                raise
        assert refused is not None, "there is at least one host"
        raise refused

    async def _ask_for_ring(self) -> None:
        """Keeps the ring current: a request by an old ring gets its answer all the same, only later."""
        while True:
            for url in self._order(None):
                try:
                    found: Ring = await self._hosts[url]._ask(GetRing())
                except PushqError:
                    continue
                if found.version > self.ring.version:
                    self.ring = found
                break
            await asyncio.sleep(RING_ASKED_SECONDS)

    async def watch(self, after: Moment | None) -> AsyncGenerator[News, None]:
        """Watches one host until that fails. Raises `Unavailable`; resumed from the last news, the watch misses
        none."""
        url = self._order(None)[0]
        try:
            async with aclosing(self._hosts[url].watch(after)) as news:
                async for one in news:
                    yield one
        except PushqError:
            self._shunned[url] = self._clock() + SHUNNED_SECONDS
            raise
