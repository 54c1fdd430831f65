"""The requests that a gateway may send to a backend beside publishes and receipts: definitions, statistics, whole
queues."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from backend_store.client.embedded import EmbeddedStore
from backend_store.client.queue import SettledAndPublished
from backend_store.metadata.data_keys import DataKey, StoredRotation
from backend_store.metadata.documents import Document, Duty
from backend_store.metadata.embedded import Tenant
from backend_store.model import ApiKey, PushqError, Quotas
from backend_store.node.ledger import QueueTotal
from backend_store.service import (
    acts,
    defining,
    groups,
    peeks,
    pulses,
    ranges,
    recalling,
    redrives,
    relocating,
    reports,
    sessions,
    tailing,
    tickets,
)
from backend_store.service.asked import Asked, AtPlace, queue_at
from backend_store.wire.store_frames import Grouped, Place, SentBlock, blocks_of_sent, placed, to_bits


class PutKey(Asked, frozen=True):
    key: ApiKey
    instead_of: ApiKey | None = None

    @property
    def whose(self) -> str | None:
        return self.key.tenant


class DeleteKey(Asked, frozen=True):
    key_id: str


class NoteKeysUsed(Asked, frozen=True):
    used: dict[str, int]


class PutTenant(Asked, frozen=True):
    name: str
    now_ms: int
    quotas: Quotas | None
    instead_of: Tenant | None = None


class DeleteTenant(Asked, frozen=True):
    name: str


class AddDataKeys(Asked, frozen=True):
    keys: list[tuple[str, DataKey]]


class ChangeDataKeys(Asked, frozen=True):
    keys: list[DataKey]


class PutRotation(Asked, frozen=True):
    rotation: StoredRotation | None


class Look(Asked, frozen=True):
    """Statistics of queues, without those that are gone. `tenant`: also of all of a tenant's queues and companions that
    store something."""

    places: list[Place]
    tenant: str | None = None

    @property
    def whose(self) -> str | None:
        return self.tenant if self.tenant is not None or not self.places else self.places[0].tenant


class Purge(AtPlace, frozen=True):
    purge_id: str


class Cancel(AtPlace, frozen=True):
    message_id: str


class SettleAndPublish(AtPlace, frozen=True):
    """Acks and publishes atomically: all or nothing."""

    receipts: list[str]
    publishes: list[tuple[Place, list[SentBlock]]]


class MoveLetters(AtPlace, frozen=True):
    """Moves dead letters out of a queue's outbox (`place`) to the queue they are for, encrypted for that by the
    gateway. The answer is whether they moved: False if one of them is not leased to the gateway any more."""

    grouped: Grouped
    target: Place
    blocks: list[SentBlock]


class WriteDocuments(Asked, frozen=True):
    """Writes rows beside the metadata; all of them or none."""

    documents: list[Document]
    duty: Duty | None = None
    """Writes only while this duty is held."""


class TakeDuty(Asked, frozen=True):
    """Takes or renews a duty. The answer names its holder: the asker, where the duty is free or its holder is
    silent."""

    name: str
    asker: str
    hold_ms: int


class Totals(Asked, frozen=True):
    """The ledger's totals."""

    first_day: int
    last_day: int
    tenant: str | None
    queue: str | None

    @property
    def whose(self) -> str | None:
        return self.tenant


Operation = (
    defining.CreateQueue
    | defining.UpdateQueue
    | defining.DeleteQueue
    | defining.MoveQueue
    | defining.AdoptQueues
    | defining.DropQueues
    | defining.GoneQueues
    | defining.NameCluster
    | relocating.BeginRelocation
    | relocating.SpreadQueue
    | relocating.GoOnSpreading
    | relocating.GiveUpRelocation
    | relocating.Arrive
    | relocating.NoteSettled
    | relocating.ForgetPlace
    | relocating.FindEnd
    | relocating.FindLeft
    | recalling.FindKnown
    | PutKey
    | DeleteKey
    | NoteKeysUsed
    | PutTenant
    | DeleteTenant
    | AddDataKeys
    | ChangeDataKeys
    | PutRotation
    | Look
    | peeks.Peek
    | Purge
    | Cancel
    | SettleAndPublish
    | MoveLetters
    | WriteDocuments
    | TakeDuty
    | pulses.TakePulses
    | Totals
    | redrives.CountLetters
    | redrives.StartRedrive
    | redrives.LookAtRedrives
    | redrives.CancelRedrive
    | groups.OpenGroup
    | groups.PutGroup
    | groups.DeleteGroup
    | groups.ListGroups
    | groups.FindGroup
    | groups.CarryGroup
    | groups.AddGaps
    | groups.LookAtGroup
    | ranges.LookAtOffsets
    | ranges.ReadRange
    | tailing.StartReading
    | acts.PutAct
    | acts.ForgetAct
    | acts.ActsBefore
    | reports.TakeReport
    | tickets.PutTicket
    | tickets.TakeTicket
    | sessions.SeekSession
    | sessions.GiveSession
    | sessions.LeaveSessions
)
decode_operation = msgspec.msgpack.Decoder(Operation).decode


async def perform(store: EmbeddedStore, asked: Operation) -> Any:
    """Returns the answer. Raises `PushqError`."""
    handle: Callable[[EmbeddedStore, Any], Awaitable[Any]] = _HANDLERS[type(asked)]
    return await handle(store, asked)


async def _put_key(store: EmbeddedStore, asked: PutKey) -> None:
    await store.node.metadata.put_key(asked.key, instead_of=asked.instead_of)


async def _delete_key(store: EmbeddedStore, asked: DeleteKey) -> None:
    await store.node.metadata.delete_key(asked.key_id)


async def _used(store: EmbeddedStore, asked: NoteKeysUsed) -> None:
    await store.node.metadata.note_keys_used(asked.used)


async def _put_tenant(store: EmbeddedStore, asked: PutTenant) -> Any:
    return await store.node.metadata.put_tenant(asked.name, asked.now_ms, asked.quotas, instead_of=asked.instead_of)


async def _delete_tenant(store: EmbeddedStore, asked: DeleteTenant) -> None:
    await store.node.metadata.delete_tenant(asked.name)


async def _add_keys(store: EmbeddedStore, asked: AddDataKeys) -> list[int]:
    return sorted(await store.node.metadata.add_data_keys(asked.keys))


async def _change_keys(store: EmbeddedStore, asked: ChangeDataKeys) -> None:
    await store.node.metadata.change_data_keys(asked.keys)


async def _rotation(store: EmbeddedStore, asked: PutRotation) -> None:
    await store.node.metadata.put_rotation(asked.rotation)


async def _look(store: EmbeddedStore, asked: Look) -> list[dict[str, Any]]:
    places = list(asked.places)
    if asked.tenant is not None:
        for tenant, name in store.names(asked.tenant):
            places.append(Place(tenant, name, store.here(tenant, name).uid))
    found = []
    for place in places:
        try:
            queue = queue_at(store, place)
        except PushqError:
            continue
        found.append(
            {
                "place": place,
                "stats": queue.stats(),
                "ended": dict(queue.ended),
                "layout": queue.layout,
                "held": store.held_bytes(place.tenant, place.name),
            }
        )
    return found


async def _purge(store: EmbeddedStore, asked: Purge) -> int:
    return (await queue_at(store, asked.place).purge(asked.purge_id)).total


async def _cancel(store: EmbeddedStore, asked: Cancel) -> str:
    return await queue_at(store, asked.place).cancel(asked.message_id)


async def _settle_and_publish(store: EmbeddedStore, asked: SettleAndPublish) -> Any:
    done = store.node.loop.create_future()
    publishes = [(queue_at(store, place), blocks_of_sent(blocks)) for place, blocks in asked.publishes]
    queue_at(store, asked.place).settle_and_publish(asked.receipts, publishes, done.set_result)
    result: SettledAndPublished | PushqError = await done
    if isinstance(result, PushqError):
        raise result
    return [verdict.ok for verdict in result.verdicts], [placed(one, store.node.copies()) for one in result.places]


async def _move_letters(store: EmbeddedStore, asked: MoveLetters) -> bool:
    done = store.node.loop.create_future()
    grouped = {token: to_bits(bits) for token, bits in asked.grouped.items()}
    target = queue_at(store, asked.target)
    queue_at(store, asked.place).move(grouped, target, blocks_of_sent(asked.blocks), done.set_result)
    result: bool | PushqError = await done
    if isinstance(result, PushqError):
        raise result
    return result


async def _write_documents(store: EmbeddedStore, asked: WriteDocuments) -> None:
    if asked.duty is not None:
        store.duties.check(asked.duty)
    await store.node.documents.write(asked.documents)
    store.node.documents.on_written()  # the other gateways get the change


async def _take_duty(store: EmbeddedStore, asked: TakeDuty) -> Duty:
    before = store.node.documents.recent.version
    duty = await store.duties.take(asked.name, asked.asker, asked.hold_ms)
    if store.node.documents.recent.version != before:
        store.node.documents.on_written()
    return duty


class Partly(msgspec.Struct, frozen=True):
    """The answer to `Totals` where some rows cannot be read."""

    totals: list[QueueTotal]
    unreadable: int


async def _totals(store: EmbeddedStore, asked: Totals) -> list[QueueTotal] | Partly:
    found = await store.ledger.totals(
        first_day=asked.first_day, last_day=asked.last_day, tenant=asked.tenant, queue=asked.queue
    )
    return Partly(found, found.unreadable) if found.unreadable else found


_HANDLERS: dict[type, Callable[[EmbeddedStore, Any], Awaitable[Any]]] = {
    PutKey: _put_key,
    DeleteKey: _delete_key,
    NoteKeysUsed: _used,
    PutTenant: _put_tenant,
    DeleteTenant: _delete_tenant,
    AddDataKeys: _add_keys,
    ChangeDataKeys: _change_keys,
    PutRotation: _rotation,
    Look: _look,
    Purge: _purge,
    Cancel: _cancel,
    SettleAndPublish: _settle_and_publish,
    MoveLetters: _move_letters,
    WriteDocuments: _write_documents,
    TakeDuty: _take_duty,
    Totals: _totals,
    **defining.HANDLERS,
    **relocating.HANDLERS,
    **recalling.HANDLERS,
    **peeks.HANDLERS,
    **pulses.HANDLERS,
    **redrives.HANDLERS,
    **groups.HANDLERS,
    **ranges.HANDLERS,
    **tailing.HANDLERS,
    **acts.HANDLERS,
    **reports.HANDLERS,
    **tickets.HANDLERS,
    **sessions.HANDLERS,
}
