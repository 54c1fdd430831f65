"""What any coordinator does, whichever driver it is: transactions over small records, reads, watches and sessions.

Errors say whether something was done. `Unavailable`: surely not, trying again is safe. `OutcomeUnknown`: perhaps, now
or within the next seconds; only reading back, or repeating a write that can succeed once, tells. What is malformed or
too big is `InvalidRequest`, with the name of the field, and is not sent.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from typing import Protocol

from backend_store.cluster.core.values import NEVER, Changes, Get, Outcome, Page, Record, Revision, Transaction
from backend_store.cluster.limits import RECORDS_PER_PAGE_MAX
from backend_store.cluster.session import Session
from backend_store.model import PushqError


class Coordinator(Protocol):
    """See the file's first sentence. Every method may raise `Unavailable` and `InvalidRequest`."""

    async def transact(self, transaction: Transaction) -> Outcome:
        """Strictly serialised with all others. Raises `OutcomeUnknown`, `SessionLost`, `StorageFull`.

        `SessionLost`: a record was to be bound to a session that is over; nothing was done.
        """

    async def read(
        self,
        prefix: bytes,
        *,
        after: bytes = b"",
        limit: int = RECORDS_PER_PAGE_MAX,
        at: Revision | None = None,
        changed_after: Revision = NEVER,
    ) -> Page:
        """Records below the prefix, those behind the key `after`, and only those changed after that revision.

        Without `at` the answer is no older than the question; with it, as of that revision, for further pages of one
        list. Raises `Compacted` where that revision is not kept. A page may be shorter than `limit`: see `has_more`.
        """

    def watch(self, prefix: bytes, *, after: Revision) -> AsyncGenerator[Changes, None]:
        """All that changes below the prefix after that revision: in order, each revision once and whole, none left out.

        It goes on by itself when a connection is lost. Raises `Compacted` where what comes next is not kept: read
        again, and watch from the revision of that answer. Close it (`contextlib.aclosing`).
        """

    async def open_session(self, ttl_s: int, *, is_alive: Callable[[], bool] = lambda: True) -> Session:
        """A session that is kept alive while `is_alive` says so, asked before each keep-alive. Close it.

        `is_alive` is for whoever knows more than that this task still runs: that the disk writes, for one.
        """

    async def close(self) -> None:
        """Ends sessions, watches and connections. What is asked afterwards is `Unavailable`."""


class Compacted(PushqError):
    """What was asked about is history, and no longer kept. List again; nothing in between can be told."""

    code = "unavailable"

    def __init__(self, detail: str, oldest: Revision):
        super().__init__(detail)
        self.oldest = oldest
        """What can be read, at least, is this revision and newer ones."""


class SessionLost(PushqError):
    """The session is over, and the records that were bound to it are gone or about to go. Begin with a new one."""

    code = "unavailable"


class UnsupportedServer(PushqError):
    """This server must not be used, and why."""

    code = "unavailable"


async def get(coordinator: Coordinator, key: bytes) -> tuple[Record | None, Revision]:
    """One record as it is now, and the revision at which that was so."""
    outcome = await coordinator.transact(Transaction(then=(Get(key),)))
    return outcome.found[0], outcome.revision


def boot_seconds() -> float:
    """Seconds since this machine was started, those of its sleep among them; no clock that anybody sets."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
