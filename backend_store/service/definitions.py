"""What gateways must know of a backend's definitions, and what of that has changed since they were last told.

Rows are frozen and replaced when they change, so what is still the same object has not changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from backend_store.core.slots import PartitionMap
from backend_store.metadata.data_keys import DataKey, StoredRotation
from backend_store.metadata.documents import Document
from backend_store.metadata.embedded import Tenant
from backend_store.metadata.moved import MovedQueue
from backend_store.model import ApiKey, QueueDefinition
from backend_store.node.node import Node


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

    def __bool__(self) -> bool:
        return any(getattr(self, name) for name in self.__struct_fields__)


class Told:
    """What one gateway was told."""

    def __init__(self) -> None:
        self._sections: dict[str, dict[Any, Any]] = {}
        self._rotation: StoredRotation | None = None
        self._used: dict[str, int] = {}
        self._version = -1
        """Of the metadata, as of which the sections were told; -1 before the first time."""
        self._documents = -1
        """As of which version they were told; -1 before the first time."""

    def news(self, node: Node) -> Definitions | None:
        """What is different from what was told before; it counts as told. It is asked for with each answer, so where
        nothing was written it must not cost a look at all that there is."""
        metadata = node.metadata
        if metadata.version == self._version:
            return self.rows(node)
        self._version = metadata.version
        found = Definitions()
        rows: dict[str, Mapping[Any, Any]] = {
            "queues": {**metadata.queues, **metadata.elsewhere.by_name},
            "keys": metadata.keys,
            "tenants": metadata.tenants,
            "moved": metadata.moved,
            "maps": metadata.maps,
            "data_keys": metadata.data_keys.by_id,
        }
        for name, section in rows.items():
            before = self._sections.get(name, {})
            setattr(found, name, [row for key, row in section.items() if before.get(key) is not row])
            setattr(found, f"{name}_gone", [key for key in before if key not in section])
            self._sections[name] = dict(section)
        self._note_documents(node, found)
        found.keys_used = {key: at for key, at in metadata.keys_used.items() if self._used.get(key) != at}
        self._used = dict(metadata.keys_used)
        found.rotation = metadata.data_keys.rotation
        changed = bool(found) or found.rotation is not self._rotation
        self._rotation = found.rotation
        return found if changed else None

    def rows(self, node: Node) -> Definitions | None:
        """What is different of documents alone: it costs what has changed, whatever else there is to know. None before
        everything was told once, too: that comes first."""
        if self._documents < 0:
            return None
        found = Definitions(rotation=self._rotation)
        self._note_documents(node, found)
        return found if found.documents or found.documents_gone else None

    def _note_documents(self, node: Node, found: Definitions) -> None:
        documents, told = node.documents, self._sections.setdefault("documents", {})
        rows = documents.rows()
        changed = documents.changed_since(self._documents)
        places = {*rows, *told} if changed is None else changed
        self._documents = documents.version
        for place in places:
            row = rows.get(place)
            if row is None and told.pop(place, None) is not None:
                found.documents_gone.append(place)
            elif row is not None and told.get(place) is not row:
                told[place] = row
                found.documents.append(row)
