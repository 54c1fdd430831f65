"""Queue definitions by name, with indexes by uid and by tenant, so that a look-up costs only what it finds."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping

from backend_store.metadata.recent import Recent, Rows
from backend_store.model import QueueDefinition

QueueName = tuple[str, str]
"""Tenant and queue."""


class NamesByTenant:
    """An index of queue names by tenant: a tenant with few queues need not scan all of them."""

    def __init__(self, names: Iterable[QueueName] = ()) -> None:
        self._of: dict[str, dict[str, None]] = {}
        for name in names:
            self.put(*name)

    def put(self, tenant: str, name: str) -> None:
        self._of.setdefault(tenant, {})[name] = None

    def remove(self, tenant: str, name: str) -> None:
        names = self._of[tenant]
        del names[name]
        if not names:
            del self._of[tenant]

    def of(self, tenant: str) -> list[QueueName]:
        """In order of insertion."""
        return [(tenant, name) for name in self._of.get(tenant, ())]


class QueueRows(Rows[QueueName, QueueDefinition]):
    """Queue definitions by name, indexed by uid and by tenant."""

    def __init__(self, definitions: Iterable[QueueDefinition]) -> None:
        super().__init__(((one.tenant, one.name), one) for one in definitions)
        self._by_tenant = NamesByTenant(self)
        numbered = sorted((one.uid, name) for name, one in self.items())
        self._uids = [uid for uid, _ in numbered]
        self._names = [name for _, name in numbered]
        """In the order of the uids."""
        self.uids: Recent[int] = Recent()
        """Uids of queues that came, changed or went recently, each with a version of its own."""

    def __setitem__(self, name: QueueName, definition: QueueDefinition) -> None:
        before = self.get(name)
        if before is None:
            self._by_tenant.put(*name)
        if before is None or before.uid != definition.uid:
            if before is not None:
                self._unlist(before.uid)
            at = bisect_left(self._uids, definition.uid)
            self._uids.insert(at, definition.uid)
            self._names.insert(at, name)
        self.uids.note((definition.uid,))
        super().__setitem__(name, definition)

    def __delitem__(self, name: QueueName) -> None:
        self._unlist(self[name].uid)
        self._by_tenant.remove(*name)
        super().__delitem__(name)

    def put(self, rows: Mapping[QueueName, QueueDefinition]) -> None:
        for name, definition in rows.items():
            self[name] = definition

    def _unlist(self, uid: int) -> None:
        at = bisect_left(self._uids, uid)
        assert self._uids[at] == uid, "each queue is listed"
        del self._uids[at], self._names[at]
        self.uids.note((uid,))

    def of(self, uid: int) -> QueueDefinition | None:
        at = bisect_left(self._uids, uid)
        return self[self._names[at]] if at < len(self._uids) and self._uids[at] == uid else None

    def after(self, uid: int, count: int) -> list[QueueDefinition]:
        """Up to `count` queues with a greater uid, in order of uid."""
        at = bisect_right(self._uids, uid)
        return [self[name] for name in self._names[at : at + count]]

    def of_tenant(self, tenant: str) -> list[QueueDefinition]:
        return [self[name] for name in self._by_tenant.of(tenant)]
