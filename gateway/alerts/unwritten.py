"""Rows of alerts that are not on the disk yet: of each place the latest version, in pieces that fit into one commit.

An alert that begins and ends while nothing can be written leaves no row: hours without backends must not pile up rows
for the next commit. Of the history the newest lines wait; the current state is never given up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain

from backend_store.client import Document
from gateway.alerts.limits import WRITE_BYTES_SOFT_MAX, WRITE_ROWS_MAX

Place = tuple[str, str]
"""Kind and name."""


class Unwritten:
    """A write-behind buffer of `Record`. There is one writer at a time."""

    def __init__(
        self, kinds: Sequence[str], stored: Callable[[str, str], bytes | None], *, rows_max: Mapping[str, int]
    ) -> None:
        """`kinds`: in the order in which they are written. `stored`: returns the row on the disk at a place.
        `rows_max`: how many rows of a kind wait at most; the oldest are given up."""
        self.merged = 0
        """Rows that were never written, since a later version of the same place replaced them."""
        self.dropped = 0
        """Rows that were given up."""
        self._rows: dict[str, dict[str, Document]] = {kind: {} for kind in kinds}
        self._rows_max = rows_max
        self._stored = stored
        self._sent: dict[Place, Document] = {}
        """The last piece sent, as it was sent, while it is not known to be written."""
        self._is_unsure = False
        """The last piece may be on the disk."""

    def __len__(self) -> int:
        return sum(map(len, self._rows.values()))

    def put(self, rows: Iterable[Document]) -> None:
        for one in rows:
            place, waiting = (one.kind, one.name), self._rows[one.kind]
            self.merged += one.name in waiting
            if one.data is None and place not in self._sent and self._stored(*place) is None:
                waiting.pop(one.name, None)
            else:
                waiting[one.name] = one
                if len(waiting) > self._rows_max.get(one.kind, len(waiting)):
                    del waiting[next(iter(waiting))]
                    self.dropped += 1

    def forget(self, kind: str, name: str) -> None:
        """Drops a waiting row: its last version is written by another commit."""
        self._rows[kind].pop(name, None)

    def of_kind(self, kind: str) -> Iterable[Document]:
        return self._rows[kind].values()

    def piece(self) -> list[Document]:
        """Rows for the next commit. A piece with an unknown outcome is sent again before any other."""
        found = [row for kind, name in self._sent if (row := self._rows[kind].get(name)) is not None]
        if not found:
            self._sent, found = {}, self._next()
            self._is_unsure = False
        self._sent |= {(one.kind, one.name): one for one in found}
        return found

    def landed(self) -> list[Document]:
        """The piece with an unknown outcome, if the disk has it by now; empty otherwise."""
        piece = list(self._sent.values()) if self._is_unsure else []
        is_there = any(one.data is not None for one in piece) and all(
            self._stored(one.kind, one.name) == one.data for one in piece
        )
        return piece if is_there else []

    def _next(self) -> list[Document]:
        found: list[Document] = []
        size = 0
        for one in chain.from_iterable(rows.values() for rows in self._rows.values()):
            if len(found) == WRITE_ROWS_MAX or size >= WRITE_BYTES_SOFT_MAX:
                break
            found.append(one)
            size += len(one.data or b"")
        return found

    def written(self, piece: Iterable[Document]) -> None:
        """Removes a written piece. Newer versions of the same places keep waiting."""
        for one in piece:
            if self._rows[one.kind].get(one.name) is one:
                del self._rows[one.kind][one.name]
        self._sent, self._is_unsure = {}, False

    def failed(self, *, is_unsure: bool) -> None:
        """`is_unsure`: the piece may be on the disk nevertheless."""
        self._is_unsure = self._is_unsure or is_unsure
        if not self._is_unsure:
            self._sent = {}

    def clear(self) -> None:
        for rows in self._rows.values():
            rows.clear()
        self._sent, self._is_unsure = {}, False
