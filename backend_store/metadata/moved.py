"""Keeps deleted queues whose messages go to another queue, for as long as publishes to them are forwarded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from backend_store.metadata.recent import Recent, Rows
from backend_store.model import QueueDefinition


class MovedQueue(msgspec.Struct, frozen=True):
    """A deleted queue whose messages go to `target`; publishes to it are forwarded until `until_ms`."""

    definition: QueueDefinition
    target: str
    until_ms: int
    is_empty: bool = False
    """All messages that it held have moved; only new publishes are to be forwarded."""

    @property
    def name(self) -> tuple[str, str]:
        """Tenant and queue."""
        return self.definition.tenant, self.definition.name


class MovedQueues(Mapping[int, MovedQueue]):
    """Moved queues of one shard by uid, as a name may have been used, and its queue moved, more than once. A publish to
    a name without a queue goes by the last moved queue of that name."""

    def __init__(self, moved: Iterable[MovedQueue] = ()) -> None:
        self._by_uid: Rows[int, MovedQueue] = Rows()
        self._last: dict[tuple[str, str], int] = {}
        self._of: dict[str, dict[int, None]] = {}
        """By tenant, the uids."""
        for one in moved:
            self.put(one)

    def __getitem__(self, uid: int) -> MovedQueue:
        return self._by_uid[uid]

    def __contains__(self, uid: object) -> bool:
        return uid in self._by_uid

    def __iter__(self) -> Iterator[int]:
        return iter(self._by_uid)

    def __len__(self) -> int:
        return len(self._by_uid)

    @property
    def recent(self) -> Recent[int]:
        """Uids of moved queues that were added, changed or forgotten lately."""
        return self._by_uid.recent

    def of_tenant(self, tenant: str) -> int:
        """Number of a tenant's moved queues."""
        return len(self._of.get(tenant, ()))

    def put(self, moved: MovedQueue) -> None:
        uid = moved.definition.uid
        self._of.setdefault(moved.name[0], {})[uid] = None
        self._by_uid[uid] = moved
        self._last[moved.name] = max(uid, self._last.get(moved.name, uid))

    def forget(self, uid: int) -> None:
        if (moved := self._by_uid.take(uid)) is None:
            return
        if self._last.get(moved.name) == uid:
            del self._last[moved.name]
        tenant, _ = moved.name
        del self._of[tenant][uid]
        if not self._of[tenant]:
            del self._of[tenant]

    def going_to(self, tenant: str, name: str) -> list[MovedQueue]:
        """The moved queues whose messages go to a queue. Takes time linear in the tenant's moved queues."""
        return [one for uid in self._of.get(tenant, ()) if (one := self._by_uid[uid]).target == name]

    def last(self, tenant: str, name: str, now_ms: int) -> MovedQueue | None:
        """The last moved queue of a name, if publishes to it are still forwarded."""
        uid = self._last.get((tenant, name))
        found = self._by_uid[uid] if uid is not None else None
        return found if found is not None and found.until_ms > now_ms else None


class MovedAnywhere(Mapping[int, MovedQueue]):
    """A live view of the moved queues of several shards."""

    def __init__(self, shards: Callable[[], Iterable[MovedQueues]]) -> None:
        self._shards = shards

    def __getitem__(self, uid: int) -> MovedQueue:
        for one in self._shards():
            if uid in one:
                return one[uid]
        raise KeyError(uid)

    def __iter__(self) -> Iterator[int]:
        return iter({uid: None for one in self._shards() for uid in one})

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def going_to(self, tenant: str, name: str) -> list[MovedQueue]:
        """See `MovedQueues.going_to`."""
        return [moved for one in self._shards() for moved in one.going_to(tenant, name)]
