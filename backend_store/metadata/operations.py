"""The operations of the metadata service as they travel: one struct each, and what its answer is."""

from __future__ import annotations

from typing import Any, assert_never

import msgspec

from backend_store.metadata.embedded import Tenant
from backend_store.metadata.service import MetadataService, Read
from backend_store.model import ApiKey, QueueConfig, QueueDefinition, Quotas

ROLE = "metadata"


class _Operation(msgspec.Struct, frozen=True, array_like=True, tag_field="operation"):
    """The first element is the operation's name."""


class GetQueue(_Operation, frozen=True, tag="get_queue"):
    tenant: str
    name: str


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


class DeleteTenant(_Operation, frozen=True, tag="delete_tenant"):
    name: str


Reading = GetQueue | ListQueues | GetKey | ListKeys | GetTenant | ListTenants
Writing = CreateQueue | UpdateQueue | DeleteQueue | PutKey | DeleteKey | PutTenant | DeleteTenant
Operation = Reading | Writing

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
}
"""How an operation's answer is decoded."""


async def perform(service: MetadataService, asked: Operation) -> Any:
    """Does what was asked for."""
    match asked:
        case GetQueue():
            return await service.get_queue(asked.tenant, asked.name)
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
            return await service.put_key(asked.key)
        case DeleteKey():
            return await service.delete_key(asked.key_id)
        case GetTenant():
            return await service.get_tenant(asked.name)
        case ListTenants():
            return await service.list_tenants(after=asked.after, limit=asked.limit)
        case PutTenant():
            return await service.put_tenant(asked.name, asked.quotas)
        case DeleteTenant():
            return await service.delete_tenant(asked.name)
        case _:
            assert_never(asked)
