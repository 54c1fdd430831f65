"""Which backends of a cluster are there, as those say to which this gateway has a line.

Each says what it knows, and one that is cut off knows what was. So they are taken together: who is there by the word of
one of them is there. While nobody is connected the last word counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from backend_store.remote.directory import parsed
from backend_store.remote.limits import BACKENDS_HEARD_MAX
from backend_store.wire.store_frames import BackendAt

There = Sequence[BackendAt]
EVERYWHERE = frozenset({"0.0.0.0", "::"})
"""Where a backend listens that cannot say where it is reached."""


class Addresses:
    """See the file's first sentence. `on_change` hears of those that are there, in the order of their names."""

    def __init__(self, on_change: Callable[[There], None]) -> None:
        self.there: There = ()
        self._on_change = on_change
        self._words: dict[object, There] = {}

    def said(self, by: object, there: There) -> None:
        """`by`: the line that it came by."""
        self._words[by] = [one for one in there[:BACKENDS_HEARD_MAX] if _is_address(one.address)]
        self._take()

    def silent(self, by: object) -> None:
        """The line has no connection."""
        if self._words.pop(by, None) is not None and self._words:
            self._take()

    def close(self) -> None:
        """Nobody hears of changes any more."""
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
