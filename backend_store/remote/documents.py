"""A backend's rows beside the metadata, as a gateway has them: in memory here, changed there, told to every gateway.

Rows of some kinds are this gateway's own business: they never leave it, and end with it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Any

import msgspec

from backend_store.metadata.documents import Document
from backend_store.service.operations import WriteDocuments

Ask = Callable[[Any], Awaitable[msgspec.Raw]]


class RemoteDocuments:
    """Has the shape of `metadata.documents.Documents`."""

    def __init__(self, ask: Ask, *, own_kinds: Collection[str] = ()):
        self._ask = ask
        self._own_kinds = frozenset(own_kinds)
        self._rows: dict[tuple[str, str], Document] = {}
        self._mine: dict[tuple[str, str], Document] = {}
        self.changes_elsewhere = 0
        """Grows with each change of shared rows, whoever made it."""

    def all(self, kind: str) -> list[tuple[str, bytes]]:
        """Name and data of each, by name."""
        rows = self._mine if kind in self._own_kinds else self._rows
        return sorted((one.name, one.data) for one in rows.values() if one.kind == kind and one.data is not None)

    async def write(self, documents: Iterable[Document]) -> None:
        """Returns when all of them are durable at the backend. Raises `PushqError`."""
        given = list(documents)
        if shared := [one for one in given if one.kind not in self._own_kinds]:
            await self._ask(WriteDocuments(shared))
        self._put(self._mine, [one for one in given if one.kind in self._own_kinds])

    def take(self, changed: list[Document], gone: list[tuple[str, str]], *, is_first: bool) -> None:
        """Takes over what the backend tells. At the first of a connection it tells everything."""
        if is_first:
            there = {(one.kind, one.name): one for one in changed}
            if there == self._rows:
                return
            self._rows = there
        elif changed or gone:
            self._put(self._rows, changed)
            for place in gone:
                self._rows.pop(place, None)
        else:
            return
        self.changes_elsewhere += 1

    @staticmethod
    def _put(rows: dict[tuple[str, str], Document], changed: list[Document]) -> None:
        for one in changed:
            if one.data is None:
                rows.pop((one.kind, one.name), None)
            else:
                rows[one.kind, one.name] = one
