"""Data keys with which a gateway encrypts and decrypts message bodies, including keys that other gateways made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import TYPE_CHECKING, Any

from backend_store.core.log.sealed_block import Seal, Sealer
from backend_store.metadata.data_keys import DataKey
from backend_store.model import PushqError, QueueDefinition
from backend_store.remote.definitions.definitions import RemoteDefinitions
from backend_store.remote.definitions.unheard import Unheard
from backend_store.remote.queues.answers import Background, LookingUp
from backend_store.remote.queues.learned_keys import Learning
from backend_store.service.definitions import Definitions as News

if TYPE_CHECKING:
    from backend_store.remote.queues.queue import RemoteQueue

LearnKeys = Callable[[list[DataKey]], Coroutine[Any, Any, None]]


class Keyring:
    """A gateway's data keys. `hear` returns when all news written so far have arrived."""

    def __init__(
        self,
        metadata: RemoteDefinitions,
        looking_up: LookingUp,
        background: Background,
        hear: Callable[[], Awaitable[None]],
        *,
        are_shared: bool,
    ) -> None:
        """`are_shared`: other gateways make keys, too, and a client that got its answer there may publish here."""
        self._metadata = metadata
        self._background = background
        self._hear = hear
        self._sealer: Sealer | None = None
        self._learning: Learning | None = None
        self._unlearnt = Unheard(looking_up, background, self._hear_keys) if are_shared else None
        self._keyed: set[int] = set()
        """Uids of queues that have a key which this gateway can use."""

    def seal_with(self, sealer: Sealer, learn: LearnKeys) -> None:
        self._sealer = sealer
        self._learning = Learning(learn, self._background)

    def seal_of(self, queue: RemoteQueue) -> Seal | None:
        if self._sealer is None:
            return None
        definition = self._metadata.queues.get((queue.tenant, queue.owner), queue.definition)
        return self._sealer.of(definition)

    async def ready(self, definition: QueueDefinition) -> None:
        if self._sealer is not None and definition.config.encrypted:
            await self._sealer.ready([definition])

    def told(self, news: News) -> None:
        if self._learning is not None:
            self._learning.told(news.data_keys, news.data_keys_gone)

    def shredded(self, uid: int) -> None:
        """Forgets a deleted queue, whose keys are destroyed."""
        self._keyed.discard(uid)
        if self._sealer is not None:
            self._sealer.shredded(uid)

    def expect(self, queue: RemoteQueue) -> None:
        """Raises `LookingUp` while a key of the queue, which another gateway may have made, has not arrived here: a
        client that was answered there must be able to publish here."""
        if self._unlearnt is None or self._learning is None or queue.uid in self._keyed or not queue.config.encrypted:
            return
        ids = self._metadata.data_keys.ids_of(queue.uid)
        if not ids or self._learning.lacks(ids):
            self._unlearnt.check(queue.uid, f"the key of queue {queue.name!r}")
        else:
            self._keyed.add(queue.uid)

    async def _hear_keys(self) -> None:
        await self._hear()
        if self._learning is not None:
            await self._learning.learnt(self._learning.unlearnt)

    def has_new(self, ids: Collection[int]) -> bool:
        """Whether one of these keys cannot be used by this gateway yet."""
        if self._learning is None or not ids:
            return False
        return self._learning.lacks(ids) or any(key_id not in self._metadata.data_keys.by_id for key_id in ids)

    async def learnt(self, ids: Collection[int]) -> bool:
        """Waits a moment for keys. Returns False if this gateway cannot use one of them now."""
        assert self._learning is not None, "nothing is sealed here"
        if any(key_id not in self._metadata.data_keys.by_id for key_id in ids):
            try:
                await self._hear()
            except PushqError:
                return False
        return await self._learning.learnt(ids)
