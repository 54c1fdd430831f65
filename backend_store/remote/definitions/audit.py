"""The audit log of a gateway without a store of its own: writes to and reads from the home cluster's first shard."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol

import msgspec
import structlog

from backend_store.model import OutcomeUnknown, PushqError, Unavailable
from backend_store.node.audit import AuditEntry, AuditLog
from backend_store.remote.queues.answers import Known
from backend_store.service.acts import ActsBefore, ForgetAct, PutAct
from backend_store.storage.engine import Batch
from backend_store.storage.memory import MemoryEngine

log = structlog.get_logger("pushq.remote")


_seq = msgspec.msgpack.Decoder(int).decode
_entries = msgspec.msgpack.Decoder(list[AuditEntry]).decode


class Ask(Protocol):
    def __call__(self, operation: Any, *, may_repeat: bool = False) -> Awaitable[msgspec.Raw]: ...


class RemoteAudit(AuditLog):
    """See the file's first sentence. Numbers of acts are this gateway's own; `_places` maps them to the storage's."""

    def __init__(self, ask: Ask, known: Known) -> None:
        super().__init__(MemoryEngine(), _nothing)
        self._ask = ask
        self._known = known
        self._places: dict[int, int] = {}
        self._changes = 0

    async def put(self, seq: int, data: bytes, *, has_ended: bool) -> None:
        place = self._places.get(seq)
        if place is not None:
            self._ended(seq)
            await self._last_word(PutAct(place, data, has_ended))
            return
        try:
            self._places[seq] = _seq(await self._ask(PutAct(None, data, has_ended)))
        except OutcomeUnknown as error:
            self._ended(seq)
            raise Unavailable(f"the audit log may be unavailable: {error.detail}; the action was not started") from None
        except BaseException:
            self._ended(seq)
            raise
        if has_ended:
            self._ended(seq)

    async def forget(self, seq: int) -> None:
        place = self._places.get(seq)
        self._ended(seq)
        if place is not None:
            await self._last_word(ForgetAct(place))

    async def _last_word(self, asked: PutAct | ForgetAct) -> None:
        """Writes an act's outcome; logs a failure instead of raising it, as the act itself has been done."""
        try:
            await self._ask(asked, may_repeat=True)
        except PushqError as error:
            log.error("the audit has an act without its outcome", place=asked.seq, error=error.detail)
        self._changes += 1

    def _ended(self, seq: int) -> None:
        self._changes += 1
        self._places.pop(seq, None)
        self._open.discard(seq)

    def before(self, seq: int | None, limit: int) -> list[AuditEntry]:
        """Returns up to `limit` entries before `seq`. Raises `LookingUp` until the rows have arrived."""

        async def ask() -> list[AuditEntry]:
            return _entries(await self._ask(ActsBefore(seq, limit)))

        return self._known.of(("acts", self._changes, seq, limit), "the audit", ask)

    def waiting(self) -> list[AuditEntry]:
        """Returns no entries: the storage exports them to files."""
        return []


async def _nothing(batch: Batch) -> None:
    raise AssertionError("nothing is written here")
