"""Who of several gateways does what only one of them shall do: a duty has a holder, and a term that grows with each.

The holder is a row like others, so everybody sees it and what it writes can be bound to it. Until when is known in
memory alone: a holder that goes on asking costs no disk. After a restart, or at another leader, the last holder's time
begins anew, and is as long as it was promised: that is a row, too, and changes when the holder asks for more, or for
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
"""What was promised is taken back when it is so many times as long as what is asked for."""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Duty).decode
_decode_hold = msgspec.msgpack.Decoder(int).decode


def decided(held: Duty | None, name: str, asker: str, *, is_over: bool) -> Duty:
    """Whose it is when somebody asks for it. `is_over`: the holder has not asked for too long."""
    if held is None:
        return Duty(name, asker, 1)
    if held.holder == asker or not is_over:
        return held
    return Duty(name, asker, held.term + 1)


class Duties:
    """Those of one store."""

    def __init__(self, documents: Documents, steady_ms: Callable[[], int]) -> None:
        self._documents = documents
        self._steady_ms = steady_ms
        self._until: dict[str, int] = {}
        self._coming: dict[str, Duty] = {}
        """Those that are on their way to the disk: what their last holder writes from now on would come after them."""
        self._turn = asyncio.Lock()

    def held(self, name: str) -> Duty | None:
        row = self._documents.rows().get((DUTY, name))
        return self._coming.get(name) or (_decode(row.data) if row is not None and row.data is not None else None)

    async def take(self, name: str, asker: str, hold_ms: int) -> Duty:
        """Whose it is now; the asker has it for `hold_ms` or until it asks again. Raises what a commit raises."""
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
                longer_ms = 1 << hold_ms.bit_length()  # so that a little more each time is not a commit each time
                await self._documents.write([Document(HOLD, name, _encode(longer_ms))])
            if duty.holder == asker:
                self._until[name] = self._steady_ms() + hold_ms
            return duty

    def _promised_ms(self, name: str) -> int:
        row = self._documents.rows().get((HOLD, name))
        return _decode_hold(row.data) if row is not None and row.data is not None else 0

    def check(self, duty: Duty) -> None:
        """Raises `Conflict` when somebody else has it by now."""
        held = self.held(duty.name)
        if held != duty:
            whose = held.holder if held is not None else "nobody"
            raise Conflict(f"the duty {duty.name!r} is not that of {duty.holder} any more: {whose} has it")
