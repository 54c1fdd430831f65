"""A gateway's copy of the backend's documents, rows beside the metadata: the backend changes them and sends changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec

from backend_store.metadata.documents import Document, Duty
from backend_store.service.operations import TakeDuty, WriteDocuments

Ask = Callable[[Any], Awaitable[msgspec.Raw]]
_duty = msgspec.msgpack.Decoder(Duty).decode


class RemoteDocuments:
    """Has the shape of `metadata.documents.Documents`."""

    def __init__(self, ask: Ask, *, holder: str = "", are_shared: bool = False):
        """`holder`: the name of this gateway for the others. `are_shared`: other gateways change documents, too."""
        self._ask = ask
        self._rows: dict[tuple[str, str], Document] = {}
        self._by_kind: dict[str, dict[str, bytes]] = {}
        """The same rows, by kind and name: reading a few rows must not scan all of them."""
        self._changes: Counter[str] = Counter()
        self._followed: dict[str, list[set[str]]] = {}
        """By kind, the sets that `changes_from_now_on` returned."""
        self._untold: dict[tuple[str, str], None] | None = None
        """During a full listing: the rows that it has not named yet; None outside of one."""
        self.are_far = True
        self.holder = holder
        self.are_shared = are_shared

    def changes_elsewhere(self, *kinds: str) -> int:
        """A number that grows with each change of rows of these kinds, by this gateway or another."""
        return sum(self._changes[kind] for kind in kinds)

    def changes_from_now_on(self, kind: str) -> set[str]:
        """Returns a set to which the name of each row of the kind that changes from now on is added; the caller takes
        names out."""
        names: set[str] = set()
        self._followed.setdefault(kind, []).append(names)
        return names

    def get(self, kind: str, name: str) -> bytes | None:
        return self._by_kind.get(kind, {}).get(name)

    def all(self, kind: str) -> list[tuple[str, bytes]]:
        """Name and data of each row of the kind, sorted by name."""
        return sorted(self._by_kind.get(kind, {}).items())

    async def write(self, documents: Iterable[Document], *, duty: Duty | None = None) -> None:
        """Writes documents; returns when all are durable at the backend. Raises `PushqError`; `Conflict` if the duty
        has ended."""
        if given := list(documents):
            await self._ask(WriteDocuments(given, duty))

    async def take_duty(self, name: str, hold_ms: int) -> Duty:
        """Tries to take a duty; returns its present holder. If this gateway holds it, what the last holder wrote has
        arrived here. Raises `PushqError`."""
        return _duty(await self._ask(TakeDuty(name, self.holder, hold_ms)))

    def take(
        self, changed: list[Document], gone: list[tuple[str, str]], *, is_first: bool, is_last: bool = True
    ) -> None:
        """Applies the backend's news. `is_first`: a full listing begins; rows that it has not named when it ends, at
        `is_last`, are removed."""
        if is_first:
            self._untold = dict.fromkeys(self._rows)
        if self._untold is not None:
            for one in changed:
                self._untold.pop((one.kind, one.name), None)
            changed = [one for one in changed if self._rows.get((one.kind, one.name)) != one]
            if is_last:
                gone, self._untold = [*gone, *self._untold], None
        for one in changed:
            assert one.data is not None, "of rows that went the names are told"
            self._rows[one.kind, one.name] = one
            self._by_kind.setdefault(one.kind, {})[one.name] = one.data
        for kind, name in gone:
            self._rows.pop((kind, name), None)
            self._by_kind.get(kind, {}).pop(name, None)
        self._changes.update({one.kind for one in changed} | {kind for kind, _ in gone})
        for kind, followers in self._followed.items():
            names = {one.name for one in changed if one.kind == kind} | {name for of, name in gone if of == kind}
            for follower in followers:
                follower |= names
