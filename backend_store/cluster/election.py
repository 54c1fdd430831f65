"""Leader election: one holder of one key at a time. Candidates create the key, bound to their sessions, when it is
absent.

Built on transactions alone. The winner gets a right to fence its writes with; having won proves nothing a moment later.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from backend_store.cluster.coordinator import Compacted, Coordinator, SessionLost, get
from backend_store.cluster.core.values import Delete, Get, Put, Record, Revision, Transaction, absent, created_at
from backend_store.cluster.fencing import Right
from backend_store.cluster.limits import CAMPAIGN_PAUSE_SECONDS
from backend_store.cluster.session import Session
from backend_store.model import OutcomeUnknown, Unavailable


class Election:
    """An election for one key. Its winners, one after the other, hold that key."""

    def __init__(self, coordinator: Coordinator, key: bytes):
        self.key = key
        self._coordinator = coordinator

    async def campaign(self, session: Session, value: bytes) -> Right:
        """Waits until this session holds the key, through outages too. `value` tells others who the holder is.

        Raises `SessionLost`. A session that already holds the key gets its right again; this includes a session whose
        campaign was cancelled but won, unless the session is closed.
        """
        running = asyncio.ensure_future(self._campaign(session, value))
        lost = asyncio.ensure_future(session.wait_lost())
        try:
            await asyncio.wait((running, lost), return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                raise SessionLost(f"session {session.id} was lost in the election for {self.key!r}: {session.reason}")
            return running.result()
        finally:
            for task in (running, lost):
                task.cancel()
            await asyncio.gather(running, lost, return_exceptions=True)

    async def _campaign(self, session: Session, value: bytes) -> Right:
        candidacy = Transaction((absent(self.key),), (Put(self.key, value, session.id),), (Get(self.key),))
        while True:
            try:
                outcome = await self._coordinator.transact(candidacy)
                if outcome.succeeded:
                    return Right(self.key, outcome.revision)
                holder = outcome.found[0]
                assert holder is not None, "the key is there: its absence was refused"
                if holder.session == session.id:
                    return Right(self.key, holder.created_at)
                await self._wait_until_free(outcome.revision)
            except (Unavailable, OutcomeUnknown):
                # If a try with an unknown outcome did succeed, the next one finds our own session there.
                await asyncio.sleep(CAMPAIGN_PAUSE_SECONDS)

    async def _wait_until_free(self, after: Revision) -> None:
        try:
            async with aclosing(self._coordinator.watch(self.key, after=after)) as watch:
                async for changes in watch:
                    if any(event.key == self.key and event.record is None for event in changes.events):
                        return
        except Compacted:
            return

    async def resign(self, right: Right) -> None:
        """Gives the key up, if it is still this right's. Raises `Unavailable`, `OutcomeUnknown`; repeating is safe."""
        assert right.key == self.key, "a right of another election"
        ours = created_at(self.key, right.created_at)
        await self._coordinator.transact(Transaction((ours,), (Delete(self.key),)))

    async def observe(self) -> AsyncGenerator[Record | None, None]:
        """The holder's record, first the present one and then with each change; None: no holder. Continues through
        outages.

        Where history is compacted meanwhile, holders in between may be left out, never the last one.
        """
        known: Record | None = None
        is_first = True
        while True:
            try:
                record, revision = await get(self._coordinator, self.key)
                if is_first or record != known:
                    is_first, known = False, record
                    yield record
                async with aclosing(self._coordinator.watch(self.key, after=revision)) as watch:
                    async for changes in watch:
                        for event in changes.events:
                            if event.key == self.key:
                                known = event.record
                                yield known
            except Compacted:
                continue
            except Unavailable:
                await asyncio.sleep(CAMPAIGN_PAUSE_SECONDS)
