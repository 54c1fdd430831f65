"""The operations of the metadata service as they are sent: one struct for each, and the type of its answer."""

from __future__ import annotations

from typing import Any, Protocol, assert_never, cast

import msgspec

from backend_store.metadata.directory.core.ring import Ring
from backend_store.metadata.directory.placement import Directory, Part, Placement
from backend_store.metadata.embedded import Tenant
from backend_store.metadata.service import MetadataService, Read
from backend_store.model import ApiKey, InvalidRequest, QueueConfig, QueueDefinition, Quotas

ROLE = "metadata"


class _Operation(msgspec.Struct, frozen=True, array_like=True, tag_field="operation"):
    """The first element is the operation's name."""


class GetQueue(_Operation, frozen=True, tag="get_queue"):
    tenant: str
    name: str
    is_sure: bool = False


class ListQueues(_Operation, frozen=True, tag="list_queues"):
    tenant: str
    after: str
    limit: int


class CreateQueue(_Operation, frozen=True, tag="create_queue"):
    tenant: str
    name: str
    config: QueueConfig


class UpdateQueue(_Operation, frozen=True, tag="update_queue"):
    tenant: str
    name: str
    config: QueueConfig
    version: int


class DeleteQueue(_Operation, frozen=True, tag="delete_queue"):
    tenant: str
    name: str


class GetKey(_Operation, frozen=True, tag="get_key"):
    key_id: str


class ListKeys(_Operation, frozen=True, tag="list_keys"):
    after: str
    limit: int


class PutKey(_Operation, frozen=True, tag="put_key"):
    key: ApiKey
    instead_of: ApiKey | None = None


class DeleteKey(_Operation, frozen=True, tag="delete_key"):
    key_id: str


class GetTenant(_Operation, frozen=True, tag="get_tenant"):
    name: str


class ListTenants(_Operation, frozen=True, tag="list_tenants"):
    after: str
    limit: int


class PutTenant(_Operation, frozen=True, tag="put_tenant"):
    name: str
    quotas: Quotas | None = None
    instead_of: Tenant | None = None


class DeleteTenant(_Operation, frozen=True, tag="delete_tenant"):
    name: str


class GetPlacement(_Operation, frozen=True, tag="get_placement"):
    uid: int


class ListPlacements(_Operation, frozen=True, tag="list_placements"):
    after: int
    limit: int


class Place(_Operation, frozen=True, tag="place"):
    tenant: str
    name: str
    uid: int
    parts: tuple[Part, ...]
    version: int


class GetRing(_Operation, frozen=True, tag="get_ring"):
    """Which hosts keep which arcs."""


Reading = GetQueue | ListQueues | GetKey | ListKeys | GetTenant | ListTenants | GetPlacement | ListPlacements | GetRing
Writing = CreateQueue | UpdateQueue | DeleteQueue | PutKey | DeleteKey | PutTenant | DeleteTenant | Place


class HandedOn(_Operation, frozen=True, tag="handed_on"):
    """A request that a host forwards to another: that host answers it itself, and does not forward it again."""

    what: Reading | Writing


Operation = Reading | Writing | HandedOn

decode_operation = msgspec.msgpack.Decoder(Operation).decode

ANSWERS: dict[type[Any], msgspec.msgpack.Decoder[Any]] = {
    GetQueue: msgspec.msgpack.Decoder(Read[QueueDefinition | None]),
    ListQueues: msgspec.msgpack.Decoder(list[QueueDefinition]),
    CreateQueue: msgspec.msgpack.Decoder(tuple[QueueDefinition, bool]),
    UpdateQueue: msgspec.msgpack.Decoder(QueueDefinition | None),
    DeleteQueue: msgspec.msgpack.Decoder(None),
    GetKey: msgspec.msgpack.Decoder(Read[ApiKey | None]),
    ListKeys: msgspec.msgpack.Decoder(list[ApiKey]),
    PutKey: msgspec.msgpack.Decoder(None),
    DeleteKey: msgspec.msgpack.Decoder(None),
    GetTenant: msgspec.msgpack.Decoder(Read[Tenant | None]),
    ListTenants: msgspec.msgpack.Decoder(list[Tenant]),
    PutTenant: msgspec.msgpack.Decoder(tuple[Tenant, bool]),
    DeleteTenant: msgspec.msgpack.Decoder(None),
    GetPlacement: msgspec.msgpack.Decoder(Read[Placement | None]),
    ListPlacements: msgspec.msgpack.Decoder(list[Placement]),
    Place: msgspec.msgpack.Decoder(Placement | None),
    GetRing: msgspec.msgpack.Decoder(Ring),
}
"""The decoder of each operation's answer."""


class DirectoryHost(MetadataService, Directory, Protocol):
    """A metadata service that also knows the placement of queues, and which host keeps what."""

    async def get_ring(self) -> Ring: ...


async def perform(service: MetadataService, asked: Operation, *, own: MetadataService | None = None) -> Any:
    """Performs an operation. `own` answers forwarded operations; without it, `service` does."""
    if isinstance(asked, HandedOn):
        return await perform(own or service, asked.what)
    if isinstance(asked, GetPlacement | ListPlacements | Place | GetRing):
        return await _perform_placed(service, asked)
    match asked:
        case GetQueue():
            return await service.get_queue(asked.tenant, asked.name, is_sure=asked.is_sure)
        case ListQueues():
            return await service.list_queues(asked.tenant, after=asked.after, limit=asked.limit)
        case CreateQueue():
            return await service.create_queue(asked.tenant, asked.name, asked.config)
        case UpdateQueue():
            return await service.update_queue(asked.tenant, asked.name, asked.config, asked.version)
        case DeleteQueue():
            return await service.delete_queue(asked.tenant, asked.name)
        case GetKey():
            return await service.get_key(asked.key_id)
        case ListKeys():
            return await service.list_keys(after=asked.after, limit=asked.limit)
        case PutKey():
            return await service.put_key(asked.key, instead_of=asked.instead_of)
        case DeleteKey():
            return await service.delete_key(asked.key_id)
        case GetTenant():
            return await service.get_tenant(asked.name)
        case ListTenants():
            return await service.list_tenants(after=asked.after, limit=asked.limit)
        case PutTenant():
            return await service.put_tenant(asked.name, asked.quotas, instead_of=asked.instead_of)
        case DeleteTenant():
            return await service.delete_tenant(asked.name)
        case _:
            assert_never(asked)


async def _perform_placed(service: MetadataService, asked: GetPlacement | ListPlacements | Place | GetRing) -> Any:
    if not hasattr(service, "get_placement"):
        raise InvalidRequest(
            "this metadata service has a single process and does not place queues; start it with --etcd"
        )
    directory = cast(DirectoryHost, service)
    match asked:
        case GetPlacement():
            return await directory.get_placement(asked.uid)
        case ListPlacements():
            return await directory.list_placements(after=asked.after, limit=asked.limit)
        case Place():
            parts, version = asked.parts, asked.version
            return await directory.place(asked.tenant, asked.name, asked.uid, parts, version=version)
        case GetRing():
            return await directory.get_ring()
        case _:
            assert_never(asked)
