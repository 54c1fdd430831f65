"""Queue names in order, by tenant, and a fair selection of the first ones: each tenant's first name, then each one's
second, so that one tenant's many names do not push out those of others.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from typing import Final

Name = tuple[str, str]
"""Tenant and queue."""


SOME: Final = 32
"""Up to this many new names are inserted one by one; more are added by sorting."""


class Dealt:
    def __init__(self, names: Iterable[Name] = ()) -> None:
        self._of: dict[str, list[str]] = {}
        self._new: dict[str, list[str]] = {}
        """By tenant, names that are not sorted in yet."""
        self._tenants: list[str] = []
        for name in names:
            self.put(name)

    def count(self, tenant: str) -> int:
        return len(self._of.get(tenant, ())) + len(self._new.get(tenant, ()))

    @property
    def tenants(self) -> Sequence[str]:
        """Tenants that have names, in order."""
        return self._tenants

    def put(self, name: Name) -> None:
        """Adds a name that is not there."""
        if name[0] not in self._of:
            self._of[name[0]] = []
            insort(self._tenants, name[0])
        self._new.setdefault(name[0], []).append(name[1])

    def remove(self, name: Name) -> None:
        """Removes a name that is there."""
        names = self._in_order(name[0])
        at = bisect_left(names, name[1])
        assert names[at] == name[1], "what was put is there"
        del names[at]
        if not names:
            del self._of[name[0]], self._tenants[bisect_left(self._tenants, name[0])]

    def first(self, most: int) -> list[Name]:
        """At most `most` names, in order. The cost depends on `most`, the number of tenants, and new names."""
        found: list[Name] = []
        tenants, place = self._tenants, 0
        while tenants and len(found) < most:
            found += [(tenant, self._in_order(tenant)[place]) for tenant in tenants[: most - len(found)]]
            place += 1
            tenants = [tenant for tenant in tenants if self.count(tenant) > place]
        return sorted(found)

    def of(self, tenant: str, most: int | None = None) -> list[Name]:
        """The first `most` names of a tenant; all without `most`."""
        return [(tenant, name) for name in self._in_order(tenant)[:most]] if tenant in self._of else []

    def _in_order(self, tenant: str) -> list[str]:
        names, new = self._of[tenant], self._new.pop(tenant, [])
        if len(new) > SOME:
            names += new
            names.sort()
        else:
            for name in new:
                insort(names, name)
        return names
