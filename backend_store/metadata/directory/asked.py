"""The arc that an operation is about, which says which host to ask."""

from __future__ import annotations

from backend_store.metadata.directory.core.names import arc_of
from backend_store.metadata.operations import (
    CreateQueue,
    DeleteKey,
    DeleteQueue,
    DeleteTenant,
    GetKey,
    GetPlacement,
    GetQueue,
    GetTenant,
    HandedOn,
    Operation,
    Place,
    PutKey,
    PutTenant,
    UpdateQueue,
)


def arc_asked(operation: Operation) -> int | None:
    """None: a list, which every host answers alike."""
    match operation:
        case GetQueue() | CreateQueue() | UpdateQueue() | DeleteQueue():
            return arc_of("q", operation.tenant, operation.name)
        case GetKey() | DeleteKey():
            return arc_of("k", operation.key_id)
        case PutKey():
            return arc_of("k", operation.key.id)
        case GetTenant() | PutTenant() | DeleteTenant():
            return arc_of("t", operation.name)
        case GetPlacement() | Place():
            return arc_of("p", str(operation.uid))
        case HandedOn():
            return arc_asked(operation.what)
        case _:
            return None
