"""Documents: small, named rows that other parts of the gateway store beside the metadata, several in one commit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Final, NamedTuple

from backend_store.metadata.recent import Recent
from backend_store.storage.engine import Batch, Engine, Table
from backend_store.storage.seal import seal, unseal

DOCUMENTS: Final = b"document/"
_PAGE: Final = 1_000

Place = tuple[str, str]
"""Kind and name."""


def _unheard() -> None: ...


class Document(NamedTuple):
    """`kind` is the owner's word, without a slash. `data` None removes the document."""

    kind: str
    name: str
    data: bytes | None


class Duty(NamedTuple):
    """The one of several gateways that performs a task; see `metadata.duties`. Of two terms the greater is later."""

    name: str
    holder: str
    term: int


def _key(kind: str, name: str) -> bytes:
    return DOCUMENTS + kind.encode() + b"/" + name.encode()


class Documents:
    def __init__(self, engine: Engine, write: Callable[[Batch], Awaitable[None]]):
        self._engine = engine
        self._write = write
        self._rows: dict[Place, Document] | None = None
        self.recent: Recent[Place] = Recent()
        """The recently changed documents."""
        self.on_written: Callable[[], None] = _unheard
        """Called after a change that a gateway made, before the gateway gets its answer."""
        self.are_far = False
        """Whether the documents are in another process, which may not answer."""
        self.are_shared = False
        """Whether other gateways change documents, too; not in an embedded store."""
        self.holder = ""
        """The name of this process for the others."""

    def changes_elsewhere(self, *kinds: str) -> int:
        """A counter that rises when another process has changed documents of these kinds."""
        return 0

    def changes_from_now_on(self, kind: str) -> set[str]:
        """Returns a set that receives the names of documents of a kind that another process changes; the caller removes
        them."""
        return set()

    def rows(self) -> dict[Place, Document]:
        """All documents by kind and name, in memory from the first call on: the same object until it changes."""
        if self._rows is None:
            found: dict[Place, Document] = {}
            start, end = DOCUMENTS, DOCUMENTS[:-1] + b"0"
            while page := self._engine.scan(Table.META, start, end, _PAGE):
                for key, row in page:
                    kind, _, name = key[len(DOCUMENTS) :].decode().partition("/")
                    found[kind, name] = Document(kind, name, unseal(key, row))
                start = page[-1][0] + b"\0"
            self._rows = found
        return self._rows

    def get(self, kind: str, name: str) -> bytes | None:
        """Raises `StorageCorrupt`."""
        key = _key(kind, name)
        row = self._engine.get(Table.META, key)
        return unseal(key, row) if row is not None else None

    def all(self, kind: str) -> list[tuple[str, bytes]]:
        """(name, data) of each document of a kind, by name. Raises `StorageCorrupt`."""
        prefix = DOCUMENTS + kind.encode() + b"/"
        start, end = prefix, prefix[:-1] + b"0"  # the byte after the slash
        found: list[tuple[str, bytes]] = []
        while rows := self._engine.scan(Table.META, start, end, _PAGE):
            found += [(key[len(prefix) :].decode(), unseal(key, row)) for key, row in rows]
            start = rows[-1][0] + b"\0"
        return found

    async def take_duty(self, name: str, hold_ms: int) -> Duty:
        """Without other processes this one has every duty."""
        return Duty(name, self.holder, 1)

    async def write(self, documents: Iterable[Document], *, duty: Duty | None = None) -> None:
        """Returns when all documents are durable. Raises what a commit raises."""
        batch, changed = Batch(), list(documents)
        for one in changed:
            key = _key(one.kind, one.name)
            if one.data is None:
                batch.delete(Table.META, key)
            else:
                batch.put(Table.META, key, seal(key, one.data))
        if batch:
            await self._write(batch)
        self.recent.note((one.kind, one.name) for one in changed)
        if self._rows is not None:
            for one in changed:
                if one.data is None:
                    self._rows.pop((one.kind, one.name), None)
                else:
                    self._rows[one.kind, one.name] = one
