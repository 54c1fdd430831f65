"""Rows in memory, and which of them changed lately: who knows of all that was before need not look at the others."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from itertools import takewhile
from typing import Any, Generic, TypeVar

from backend_store.metadata.limits import ROW_CHANGES_KEPT_MAX

Name = TypeVar("Name")
Row = TypeVar("Row")


class Recent(Generic[Name]):
    """Names of rows that changed, each with the version of its last change."""

    def __init__(self) -> None:
        self.version = 0
        """Grows with each change."""
        self.more = 0
        """So many are remembered beyond `ROW_CHANGES_KEPT_MAX`."""
        self._changed: OrderedDict[Name, int] = OrderedDict()
        """The last change is at the end."""
        self._from = 0
        """Of later versions all that they changed is known."""

    def note(self, names: Iterable[Name]) -> None:
        """These have changed, in one version."""
        # Before they come in: whoever hears of each change hears of this one, however much it is.
        while len(self._changed) > ROW_CHANGES_KEPT_MAX + self.more:
            _, self._from = self._changed.popitem(last=False)
        self.version += 1
        for name in names:
            self._changed[name] = self.version
            self._changed.move_to_end(name)

    def version_of(self, name: Name) -> int:
        """Of a name that has changed lately."""
        return self._changed[name]

    def since(self, version: int) -> list[Name] | None:
        """What has changed after that version, the last at the end; None where so much has that this is not known any
        more."""
        if version < self._from:
            return None
        found = [name for name, _ in takewhile(lambda one: one[1] > version, reversed(self._changed.items()))]
        found.reverse()
        return found

    def page(self, version: int, count: int) -> tuple[list[Name], int] | None:
        """As `since`, so many at most, where each change had a version of its own; and the version as of which that is
        all."""
        found = self.since(version)
        if found is None or len(found) <= count:
            return None if found is None else (found, self.version)
        return found[:count], self._changed[found[count - 1]]


class Rows(dict[Name, Row]):
    """A dictionary that knows which of its rows came, changed or went lately. Those it is made of are no change."""

    def __init__(self, rows: Mapping[Name, Row] | Iterable[tuple[Name, Row]] = ()) -> None:
        super().__init__(rows)
        self.recent: Recent[Name] = Recent()

    def __setitem__(self, name: Name, row: Row) -> None:
        super().__setitem__(name, row)
        self.recent.note((name,))

    def __delitem__(self, name: Name) -> None:
        super().__delitem__(name)
        self.recent.note((name,))

    def take(self, name: Name) -> Row | None:
        """It goes, where it is there."""
        row = self.get(name)
        if row is not None:
            del self[name]
        return row

    def put(self, rows: Mapping[Name, Row]) -> None:
        """All of them in one version."""
        super().update(rows)
        self.recent.note(rows)

    def _unnoted(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("this would change rows that nobody hears of")

    pop = popitem = update = setdefault = clear = __ior__ = _unnoted
