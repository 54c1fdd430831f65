"""The audit log of gateways without a store of their own: its rows are stored with the definitions, durable before the
act."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from backend_store.client.embedded import EmbeddedStore
from backend_store.node.audit import AuditEntry
from backend_store.service.asked import Asked
from backend_store.service.limits import ACT_SECONDS_MAX


class PutAct(Asked, frozen=True):
    """Stores a row; the answer is its number. `seq` None makes a new row."""

    seq: int | None
    data: bytes
    has_ended: bool


class ForgetAct(Asked, frozen=True):
    seq: int


class ActsBefore(Asked, frozen=True):
    """The newest rows below a number."""

    seq: int | None
    limit: int


async def _put(store: EmbeddedStore, asked: PutAct) -> int:
    audit = store.audit
    seq = audit.begin() if asked.seq is None else asked.seq
    await audit.put(seq, asked.data, has_ended=asked.has_ended)
    if not asked.has_ended:
        # A gateway that died does not end its act, and the rows behind it must still reach their file.
        store.node.later(ACT_SECONDS_MAX, lambda: audit.give_up(seq))
    return seq


async def _forget(store: EmbeddedStore, asked: ForgetAct) -> None:
    await store.audit.forget(asked.seq)


async def _before(store: EmbeddedStore, asked: ActsBefore) -> list[AuditEntry]:
    return store.audit.before(asked.seq, asked.limit)


def hold_acts(store: EmbeddedStore) -> None:
    """A new leader does not know which acts gateways began with the one before: it waits as long for their ends."""
    if store.audit.hold():
        store.node.later(ACT_SECONDS_MAX, store.audit.release)


HANDLERS: dict[type, Callable[[EmbeddedStore, Any], Awaitable[Any]]] = {
    PutAct: _put,
    ForgetAct: _forget,
    ActsBefore: _before,
}
