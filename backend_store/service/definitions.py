"""The definitions that gateways need from a backend, and what has changed since a gateway was last told.

The tables record recent changes, so an update costs what it changes, however many rows there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import msgspec

from backend_store.core.partitions.slots import PartitionMap
from backend_store.metadata.data_keys import DataKey, StoredRotation
from backend_store.metadata.documents import Document
from backend_store.metadata.embedded import Tenant
from backend_store.metadata.moved import MovedQueue
from backend_store.metadata.recent import Recent
from backend_store.model import ApiKey, QueueDefinition
from backend_store.node.node import Node
from backend_store.service.limits import DEFINITIONS_PER_FRAME_MAX
from backend_store.wire.store_frames import Known


class Definitions(msgspec.Struct):
    """Rows that are new or changed, and the names of those that have gone."""

    queues: list[QueueDefinition] = []
    queues_gone: list[tuple[str, str]] = []
    keys: list[ApiKey] = []
    keys_gone: list[str] = []
    tenants: list[Tenant] = []
    tenants_gone: list[str] = []
    moved: list[MovedQueue] = []
    moved_gone: list[int] = []
    maps: list[PartitionMap] = []
    maps_gone: list[int] = []
    data_keys: list[DataKey] = []
    data_keys_gone: list[int] = []
    documents: list[Document] = []
    documents_gone: list[tuple[str, str]] = []
    keys_used: dict[str, int] = {}
    rotation: StoredRotation | None = None

    @property
    def size(self) -> int:
        """The number of rows."""
        return sum(len(getattr(self, name)) for name in self.__struct_fields__ if name != "rotation")

    def __bool__(self) -> bool:
        return any(getattr(self, name) for name in self.__struct_fields__)


class LeftBehind(Exception):
    """More has changed since a gateway was last told than is recorded: it has to be told everything."""


class Told:
    """What one gateway was told: everything once, and from then on what has changed."""

    def __init__(self) -> None:
        self._versions: dict[str, int] | None = None
        """The version of each kind of rows as it was last told; None before the first time."""
        self._version = -1
        """The metadata's version; while it stays, only documents can be new."""
        self._rotation: StoredRotation | None = None
        self._unsaid: dict[str, dict[Any, None]] = {}
        """By kind, the names of rows that changed since, and are told later: see `keep_up`."""

    def go_on(self, node: Node, known: Known) -> Definitions | None:
        """What has changed since an earlier connection told a gateway `known`; None where that is not known, and the
        gateway needs everything."""
        recents = _recents(node)
        if known.era != _era(node) or known.versions.keys() != recents.keys():
            return None
        try:
            found = _changes(node, known.versions, {})
        except LeftBehind:
            return None
        self._note(node, found)
        return found

    def begin(self, node: Node) -> Definitions:
        """Returns everything. Later changes are news, however long it takes to send everything."""
        found = everything(node)
        self._note(node, found)
        return found

    def known(self, node: Node) -> Known:
        """What the gateway knows now."""
        return Known(_era(node), self._versions or {})

    def keep_up(self, node: Node) -> None:
        """Notes the names of rows that have changed meanwhile: the tables forget changes, however long it takes until
        these are told. Raises `LeftBehind`."""
        if self._versions is None:
            return
        for kind, recent in _recents(node).items():
            if recent.version != self._versions[kind]:
                names = _since(recent, self._versions[kind])
                self._unsaid.setdefault(kind, {}).update(dict.fromkeys(names))
                self._versions[kind] = recent.version

    def news(self, node: Node) -> Definitions | None:
        """Returns what has changed since the last call, and counts it as told. Each answer calls this, so it must cost
        what was written, and not scan everything. Raises `LeftBehind`."""
        metadata = node.metadata
        if metadata.version == self._version and not self._unsaid:
            return self.rows(node)
        before = self._rotation
        found = everything(node) if self._versions is None else _changes(node, self._versions, self._unsaid)
        self._note(node, found)
        return found if found or found.rotation is not before else None

    def _note(self, node: Node, found: Definitions) -> None:
        self._unsaid = {}
        self._version = node.metadata.version
        self._versions = {kind: recent.version for kind, recent in _recents(node).items()}
        self._rotation = found.rotation

    def rows(self, node: Node) -> Definitions | None:
        """Returns the changed documents alone. None also before everything was told once: that comes first. Raises
        `LeftBehind`."""
        recent = node.documents.recent
        if self._versions is None or recent.version == self._versions["documents"]:
            return None
        names = _since(recent, self._versions["documents"])
        self._versions["documents"] = recent.version
        documents, gone = _apart(names, node.documents.rows().get)
        return Definitions(documents=documents, documents_gone=gone, rotation=self._rotation) if names else None


def everything(node: Node) -> Definitions:
    """All that a gateway must know."""
    metadata = node.metadata
    return Definitions(
        queues=list({**metadata.queues, **metadata.elsewhere.by_name}.values()),
        keys=list(metadata.keys.values()),
        tenants=list(metadata.tenants.values()),
        moved=list(metadata.moved.values()),
        maps=list(metadata.maps.values()),
        data_keys=list(metadata.data_keys.by_id.values()),
        documents=list(node.documents.rows().values()),
        keys_used=dict(metadata.keys_used),
        rotation=metadata.data_keys.rotation,
    )


def in_parts(whole: Definitions) -> Iterator[Definitions]:
    """Parts of `DEFINITIONS_PER_FRAME_MAX` rows. What queues refer to comes before the queues, and what has gone comes
    last."""
    size = DEFINITIONS_PER_FRAME_MAX
    used = list(whole.keys_used.items())
    for at in range(0, len(used), size):
        yield Definitions(keys_used=dict(used[at : at + size]), rotation=whole.rotation)
    kinds = "keys", "tenants", "data_keys", "maps", "moved", "documents", "queues"
    for kind in (*kinds, *(f"{kind}_gone" for kind in kinds)):
        rows = getattr(whole, kind)
        for at in range(0, len(rows), size):
            part = Definitions(rotation=whole.rotation)
            setattr(part, kind, rows[at : at + size])
            yield part


def _era(node: Node) -> str:
    return node.metadata.changes.now.era


def _changes(node: Node, told: Mapping[str, int], unsaid: Mapping[str, Iterable[Any]]) -> Definitions:
    """What has changed since these versions, and the rows named in `unsaid`. Raises `LeftBehind`."""
    metadata, found, recents = node.metadata, Definitions(), _recents(node)

    def names(*kinds: str) -> Iterable[Any]:
        changed = (chain(unsaid.get(kind, ()), _since(recents[kind], told[kind])) for kind in kinds)
        return dict.fromkeys(chain.from_iterable(changed))

    found.queues, found.queues_gone = _apart(names("queues", "placed"), lambda name: metadata.defined(*name))
    found.keys, found.keys_gone = _apart(names("keys"), metadata.keys.get)
    found.tenants, found.tenants_gone = _apart(names("tenants"), metadata.tenants.get)
    found.moved, found.moved_gone = _apart(names("moved"), metadata.moved.get)
    found.maps, found.maps_gone = _apart(names("maps"), metadata.maps.get)
    found.data_keys, found.data_keys_gone = _apart(names("data_keys"), metadata.data_keys.by_id.get)
    found.documents, found.documents_gone = _apart(names("documents"), node.documents.rows().get)
    found.keys_used = {key: at for key in names("keys_used") if (at := metadata.keys_used.get(key)) is not None}
    found.rotation = metadata.data_keys.rotation
    return found


def _recents(node: Node) -> dict[str, Recent[Any]]:
    metadata = node.metadata
    return {
        "queues": metadata.queues.recent,
        "placed": metadata.elsewhere.by_name.recent,
        "keys": metadata.keys.recent,
        "keys_used": metadata.keys_used.recent,
        "tenants": metadata.tenants.recent,
        "moved": metadata.moved.recent,
        "maps": metadata.maps.recent,
        "data_keys": metadata.data_keys.by_id.recent,
        "documents": node.documents.recent,
    }


def _since(recent: Recent[Any], version: int) -> list[Any]:
    names = recent.since(version)
    if names is None:
        raise LeftBehind
    return names


def _apart(names: Iterable[Any], find: Callable[[Any], Any]) -> tuple[list[Any], list[Any]]:
    """The rows that are there, and the names of those that have gone."""
    rows, gone = [], []
    for name in names:
        if (row := find(name)) is not None:
            rows.append(row)
        else:
            gone.append(name)
    return rows, gone
