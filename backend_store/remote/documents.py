"""A backend's rows beside the metadata, as a gateway has them: in memory here, changed there, told to every gateway."""

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
        """`holder`: who this gateway is to the others. `are_shared`: there may be others that have no duty from us."""
        self._ask = ask
        self._rows: dict[tuple[str, str], Document] = {}
        self._by_kind: dict[str, dict[str, bytes]] = {}
        """The same, name and data: a few rows must not cost looking at all."""
        self._changes: Counter[str] = Counter()
        self._followed: dict[str, list[set[str]]] = {}
        """By kind: what was asked to be filled."""
        self._untold: dict[tuple[str, str], None] | None = None
        """While all rows are told anew: those of which nothing was said yet."""
        self.are_far = True
        self.holder = holder
        self.are_shared = are_shared

    def changes_elsewhere(self, *kinds: str) -> int:
        """Grows with each change of rows of these kinds, whoever made it."""
        return sum(self._changes[kind] for kind in kinds)

    def changes_from_now_on(self, kind: str) -> set[str]:
        """Names of rows of a kind that change, whoever changes them, are put into it; who asked takes them out."""
        names: set[str] = set()
        self._followed.setdefault(kind, []).append(names)
        return names

    def get(self, kind: str, name: str) -> bytes | None:
        return self._by_kind.get(kind, {}).get(name)

    def all(self, kind: str) -> list[tuple[str, bytes]]:
        """Name and data of each, by name."""
        return sorted(self._by_kind.get(kind, {}).items())

    async def write(self, documents: Iterable[Document], *, duty: Duty | None = None) -> None:
        """Returns when all are durable at the backend. Raises `PushqError`; `Conflict` when the duty is over."""
        if given := list(documents):
            await self._ask(WriteDocuments(given, duty))

    async def take_duty(self, name: str, hold_ms: int) -> Duty:
        """Whose it is now. What its last holder wrote is here when it is ours. Raises `PushqError`."""
        return _duty(await self._ask(TakeDuty(name, self.holder, hold_ms)))

    def take(
        self, changed: list[Document], gone: list[tuple[str, str]], *, is_first: bool, is_last: bool = True
    ) -> None:
        """Takes over what the backend tells. `is_first`: with it all rows are told anew, and those that are not among
        them when that is complete, with `is_last`, have gone."""
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
