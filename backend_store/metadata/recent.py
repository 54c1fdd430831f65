"""Rows in memory with a record of recent changes: a reader that knows an earlier version need not look at all rows."""

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
        """Rises with each change."""
        self.more = 0
        """How many names beyond `ROW_CHANGES_KEPT_MAX` are remembered."""
        self._changed: OrderedDict[Name, int] = OrderedDict()
        """In order of the last change, the latest at the end."""
        self._from = 0
        """All changes after this version are known."""

    def note(self, names: Iterable[Name]) -> None:
        """Records that these rows have changed, as one version."""
        # Trims before it adds: a reader that follows each change gets this one whole, however much it is.
        while len(self._changed) > ROW_CHANGES_KEPT_MAX + self.more:
            _, self._from = self._changed.popitem(last=False)
        self.version += 1
        for name in names:
            self._changed[name] = self.version
            self._changed.move_to_end(name)

    def version_of(self, name: Name) -> int:
        """The version of the last change of a name that has changed recently."""
        return self._changed[name]

    def since(self, version: int) -> list[Name] | None:
        """The names that changed after that version, the latest at the end; None where older changes would be needed
        that are not remembered any more."""
        if version < self._from:
            return None
        found = [name for name, _ in takewhile(lambda one: one[1] > version, reversed(self._changed.items()))]
        found.reverse()
        return found

    def page(self, version: int, count: int) -> tuple[list[Name], int] | None:
        """As `since`, but at most `count` names, and the version up to which they are complete. Each change must have
        had a version of its own."""
        found = self.since(version)
        if found is None or len(found) <= count:
            return None if found is None else (found, self.version)
        return found[:count], self._changed[found[count - 1]]


class Rows(dict[Name, Row]):
    """A dictionary that records which of its rows came, changed or went recently. Its initial rows are no changes."""

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
        """Removes and returns a row; None where it is not there."""
        row = self.get(name)
        if row is not None:
            del self[name]
        return row

    def put(self, rows: Mapping[Name, Row]) -> None:
        """Sets all of them as one version."""
        super().update(rows)
        self.recent.note(rows)

    def _unnoted(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("this would change rows that nobody hears of")

    pop = popitem = update = setdefault = clear = __ior__ = _unnoted
