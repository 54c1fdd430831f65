"""The records that a host holds of the directory: those of its arcs, filled by lists and updated by the watch.

A list and the watch bring the same records at different revisions. The newer one counts; a record that was deleted
while its arc was read does not come back with an older page.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from backend_store.cluster.core.values import Event, Page, Record, Revision
from backend_store.metadata.directory.core.names import Place, place_of
from backend_store.metadata.directory.limits import ARCS, RECORDS_MAX


class Holding:
    """The records that one host holds, by arc."""

    def __init__(self) -> None:
        self._arcs: dict[int, dict[bytes, Record]] = {}
        self._tenants: dict[int, dict[bytes, set[bytes]]] = {}
        """By arc: tenant → keys of its queues."""
        self._deleted: dict[int, dict[bytes, Revision]] = {}
        """Of arcs that are being read: keys deleted meanwhile, and at which revision."""
        self.count = 0

    # ------------------------------------------------------------------------------------------------------ arcs

    def wish(self, arcs: Collection[int]) -> None:
        """Sets the arcs to keep; others are dropped."""
        for arc in set(self._arcs) - set(arcs):
            self.count -= len(self._arcs.pop(arc))
            self._tenants.pop(arc)
            self._deleted.pop(arc, None)
        for arc in set(arcs) - set(self._arcs):
            self._arcs[arc] = {}
            self._tenants[arc] = {}
            self._deleted[arc] = {}

    def doubt(self) -> None:
        """Changes may have been missed: all arcs are to be read again."""
        arcs = list(self._arcs)
        self.wish(())
        self.wish(arcs)

    def _forget(self, arc: int) -> None:
        """Drops an arc for which there is no room: its requests go to the coordinator."""
        self.count -= len(self._arcs[arc])
        self._arcs[arc], self._tenants[arc], self._deleted[arc] = {}, {}, {}

    @property
    def arcs(self) -> frozenset[int]:
        return frozenset(self._arcs)

    @property
    def unread(self) -> list[int]:
        """Arcs that are to be kept and have not been read; none without room."""
        return sorted(self._deleted) if self.count < RECORDS_MAX else []

    def is_whole(self, arc: int) -> bool:
        """Whether the arc is complete: a record that is not held does not exist."""
        return arc in self._arcs and arc not in self._deleted

    @property
    def is_everything(self) -> bool:
        return len(self._arcs) == ARCS and not self._deleted

    def reading(self, arc: int) -> object:
        """Begins to read an arc's list; returns a token for `read`."""
        return self._deleted[arc]

    def read(self, arc: int, pages: Sequence[Page], begun: object) -> None:
        """Adds all pages of an arc's list. Does nothing where the arc was dropped or doubted since `begun`."""
        gone = self._deleted.get(arc)
        if gone is None or gone is not begun:
            return
        for page in pages:
            for record in page.records:
                if gone.get(record.key, 0) <= page.revision:
                    self._put(arc, record)
        if self._deleted.get(arc) is gone:
            del self._deleted[arc]

    # --------------------------------------------------------------------------------------------------- changes

    def apply(self, revision: Revision, events: Sequence[Event]) -> None:
        """Applies one revision of the watch."""
        for event in events:
            place = place_of(event.key)
            if place is None or place.arc not in self._arcs:
                continue
            if event.record is not None:
                self._put(place.arc, event.record)
            else:
                self._delete(place, event.key, revision)

    def _put(self, arc: int, record: Record) -> None:
        held = self._arcs[arc]
        known = held.get(record.key)
        if known is not None and known.changed_at >= record.changed_at:
            return
        if known is None and self.count >= RECORDS_MAX:
            self._forget(arc)
            return
        held[record.key] = record
        if known is None:
            self.count += 1
            if (tenant := _tenant_of(record.key)) is not None:
                self._tenants[arc].setdefault(tenant, set()).add(record.key)

    def _delete(self, place: Place, key: bytes, revision: Revision) -> None:
        if place.arc in self._deleted:
            self._deleted[place.arc][key] = revision
        known = self._arcs[place.arc].get(key)
        if known is None or known.changed_at > revision:
            return
        del self._arcs[place.arc][key]
        self.count -= 1
        if (tenant := _tenant_of(key)) is not None:
            keys = self._tenants[place.arc][tenant]
            keys.discard(key)
            if not keys:
                del self._tenants[place.arc][tenant]

    # --------------------------------------------------------------------------------------------------- reading

    def get(self, arc: int, key: bytes) -> Record | None:
        return self._arcs[arc].get(key)

    def of_kind(self, prefixes: Sequence[bytes]) -> Iterator[Record]:
        """All records below prefixes, one prefix for each arc; a queue's prefix names its tenant."""
        for arc, prefix in enumerate(prefixes):
            tenant = _tenant_of(prefix)
            if tenant is not None:
                held = self._arcs[arc]
                yield from (held[key] for key in self._tenants[arc].get(tenant, ()))
            else:
                yield from (record for key, record in self._arcs[arc].items() if key.startswith(prefix))


def _tenant_of(key: bytes) -> bytes | None:
    place = place_of(key)
    if place is None or place.kind != "q" or b"\0" not in place.rest:
        return None
    return place.rest.partition(b"\0")[0]
