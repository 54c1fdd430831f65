"""The ledger of a gateway with backends: sums up what the backends counted; nothing is counted here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from backend_store.node.ledger import LedgerBook, QueueTotal, together
from backend_store.node.ledger import Totals as Counted
from backend_store.node.node import wall_clock_ms
from backend_store.service.operations import Partly, Totals
from backend_store.storage.engine import Batch
from backend_store.storage.memory import MemoryEngine

if TYPE_CHECKING:
    from backend_store.remote.home import Home

_totals = msgspec.msgpack.Decoder(list[QueueTotal] | Partly).decode


class RemoteLedger(LedgerBook):
    """A `LedgerBook` over all shards. `homes`: returns the shards of all clusters with queues, those that are away
    included; raises `Unavailable` if this gateway cannot reach some cluster at all."""

    def __init__(self, homes: Callable[[], Sequence[Home]]):
        engine = MemoryEngine()

        async def write(batch: Batch) -> None:
            engine.commit(batch, lambda: None)

        super().__init__(engine, write, lambda: (), wall_clock_ms)
        self._homes = homes

    async def totals(
        self, *, first_day: int, last_day: int, tenant: str | None = None, queue: str | None = None
    ) -> Counted:
        """Raises `Unavailable` while a shard has no leader: a sum without it would be wrong."""
        wanted = Totals(first_day, last_day, tenant, queue)
        answers = await asyncio.gather(*(home.ask(wanted, may_repeat=True) for home in self._homes()))
        parts = [_totals(answer) for answer in answers]
        found = Counted(
            together(total for part in parts for total in (part if isinstance(part, list) else part.totals))
        )
        found.unreadable = sum(part.unreadable for part in parts if isinstance(part, Partly))
        return found
