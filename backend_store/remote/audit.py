"""The audit as a gateway of this machine's storage has it: written there, and read from there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from backend_store.node.audit import AuditEntry, AuditLog
from backend_store.remote.known import Known
from backend_store.service.acts import ActsBefore, ForgetAct, PutAct
from backend_store.storage.engine import Batch
from backend_store.storage.memory import MemoryEngine

Ask = Callable[[Any], Awaitable[msgspec.Raw]]

_seq = msgspec.msgpack.Decoder(int).decode
_entries = msgspec.msgpack.Decoder(list[AuditEntry]).decode


class RemoteAudit(AuditLog):
    """See the file's first sentence. Numbers of acts are this gateway's own; rows have their place in the storage."""

    def __init__(self, ask: Ask, known: Known) -> None:
        super().__init__(MemoryEngine(), _nothing)
        self._ask = ask
        self._known = known
        self._places: dict[int, int] = {}
        self._changes = 0

    async def put(self, seq: int, data: bytes, *, has_ended: bool) -> None:
        try:
            place = self._places.get(seq)
            self._places[seq] = _seq(await self._ask(PutAct(place, data, has_ended)))
        except BaseException:
            self._ended(seq)
            raise
        if has_ended:
            self._ended(seq)

    async def forget(self, seq: int) -> None:
        place = self._places.get(seq)
        self._ended(seq)
        if place is not None:
            await self._ask(ForgetAct(place))

    def _ended(self, seq: int) -> None:
        self._changes += 1
        self._places.pop(seq, None)
        self._open.discard(seq)

    def before(self, seq: int | None, limit: int) -> list[AuditEntry]:
        """Raises `LookingUp` until the rows are here."""

        async def ask() -> list[AuditEntry]:
            return _entries(await self._ask(ActsBefore(seq, limit)))

        return self._known.of(("acts", self._changes, seq, limit), "the audit", ask)

    def waiting(self) -> list[AuditEntry]:
        """None: the storage writes their files."""
        return []


async def _nothing(batch: Batch) -> None:
    raise AssertionError("nothing is written here")
