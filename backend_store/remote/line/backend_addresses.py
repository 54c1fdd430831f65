"""Tracks which backends of a cluster are live, as reported by the backends to which this gateway has a line.

Each backend reports what it knows, and one that is cut off reports old data. So the reports are united: a backend is
live if at least one report names it. While no line is connected the last union counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from backend_store.remote.definitions.directory import parsed
from backend_store.remote.limits import BACKENDS_HEARD_MAX
from backend_store.wire.store_frames import BackendAt

There = Sequence[BackendAt]
EVERYWHERE = frozenset({"0.0.0.0", "::"})
"""Listening addresses of a backend that does not know the address at which it is reached."""


class Addresses:
    """The live backends of one cluster. `on_change` is called with them, sorted by name, when they change."""

    def __init__(self, on_change: Callable[[There], None]) -> None:
        self.there: There = ()
        self._on_change = on_change
        self._words: dict[object, There] = {}

    def said(self, by: object, there: There) -> None:
        """Takes over a backend's report, of which at most `BACKENDS_HEARD_MAX` entries count. `by`: its line."""
        self._words[by] = [one for one in there[:BACKENDS_HEARD_MAX] if _is_address(one.address)]
        self._take()

    def silent(self, by: object) -> None:
        """Drops the report of a line that has lost its connection."""
        if self._words.pop(by, None) is not None and self._words:
            self._take()

    def close(self) -> None:
        """Ends the calls of `on_change`."""
        self._on_change = lambda there: None

    def _take(self) -> None:
        found: dict[tuple[str, str], BackendAt] = {}
        for word in self._words.values():
            for one in word:
                before = found.get((one.name, one.address))
                if before is None or one.has_lane:
                    found[one.name, one.address] = one
        there = [found[key] for key in sorted(found)][:BACKENDS_HEARD_MAX]
        if there and there != self.there:
            self.there = there
            self._on_change(there)


def _is_address(text: str) -> bool:
    address = parsed(text)
    return address is not None and address[0] not in EVERYWHERE
