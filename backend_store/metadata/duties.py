"""Duties: tasks that only one of several gateways performs at a time. A duty has a holder, and a term that rises with
each new holder.

The holder is a document, so that all gateways see it and its writes can be made conditional on the duty. The expiry is
in memory alone: a holder that renews costs no disk writes. After a restart, or at another leader, the last holder's
time begins anew with its promised length, which is a document, too, and changes when the holder asks for more, or for
much less.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from backend_store.metadata.documents import Document, Documents, Duty
from backend_store.model import Conflict

DUTY: Final = "duty"
HOLD: Final = "duty-hold"
_MUCH: Final = 4
"""The promised time is shortened when it is at least so many times as long as the requested one."""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Duty).decode
_decode_hold = msgspec.msgpack.Decoder(int).decode


def decided(held: Duty | None, name: str, asker: str, *, is_over: bool) -> Duty:
    """The holder when `asker` asks for the duty. `is_over`: the present holder's time has expired."""
    if held is None:
        return Duty(name, asker, 1)
    if held.holder == asker or not is_over:
        return held
    return Duty(name, asker, held.term + 1)


class Duties:
    """The duties of one store."""

    def __init__(self, documents: Documents, steady_ms: Callable[[], int]) -> None:
        self._documents = documents
        self._steady_ms = steady_ms
        self._until: dict[str, int] = {}
        self._coming: dict[str, Duty] = {}
        """Duties that are being written: what their last holder writes from now on would come after them."""
        self._turn = asyncio.Lock()

    def held(self, name: str) -> Duty | None:
        row = self._documents.rows().get((DUTY, name))
        return self._coming.get(name) or (_decode(row.data) if row is not None and row.data is not None else None)

    async def take(self, name: str, asker: str, hold_ms: int) -> Duty:
        """Returns the duty as it is held now; `asker`, if it is the holder, has it for `hold_ms` or until it asks
        again. Raises what a commit raises."""
        async with self._turn:
            now_ms, held = self._steady_ms(), self.held(name)
            promised_ms = self._promised_ms(name)
            is_over = self._until.setdefault(name, now_ms + max(hold_ms, promised_ms)) <= now_ms
            duty = decided(held, name, asker, is_over=is_over)
            if duty != held:
                self._coming[name] = duty
                try:
                    rows = [Document(DUTY, name, _encode(duty)), Document(HOLD, name, _encode(hold_ms))]
                    await self._documents.write(rows)
                finally:
                    del self._coming[name]
            elif duty.holder == asker and (hold_ms > promised_ms or 0 < hold_ms * _MUCH < promised_ms):
                longer_ms = 1 << hold_ms.bit_length()  # rounded up: not each small increase is a commit
                await self._documents.write([Document(HOLD, name, _encode(longer_ms))])
            if duty.holder == asker:
                self._until[name] = self._steady_ms() + hold_ms
            return duty

    def _promised_ms(self, name: str) -> int:
        row = self._documents.rows().get((HOLD, name))
        return _decode_hold(row.data) if row is not None and row.data is not None else 0

    def check(self, duty: Duty) -> None:
        """Raises `Conflict` when the duty has another holder or term by now."""
        held = self.held(duty.name)
        if held != duty:
            whose = held.holder if held is not None else "nobody"
            raise Conflict(f"the duty {duty.name!r} is not that of {duty.holder} any more: {whose} has it")
