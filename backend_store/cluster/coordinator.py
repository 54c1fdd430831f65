"""The interface of a coordinator, for all drivers: transactions over small records, reads, watches and sessions.

Errors say whether something was done. `Unavailable`: surely not, trying again is safe. `OutcomeUnknown`: perhaps, now
or within the next seconds; only reading back, or repeating a write that can succeed once, tells. A malformed or
oversized request is `InvalidRequest`, with the name of the field, and is not sent.
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
    """A coordinator. Every method may raise `Unavailable` and `InvalidRequest`."""

    async def transact(self, transaction: Transaction) -> Outcome:
        """Strictly serialised with all other transactions. Raises `OutcomeUnknown`, `SessionLost`, `StorageFull`.

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
        """Records below the prefix with keys after `after`, and only those changed after `changed_after`.

        Without `at` the answer is no older than the request; with it, it is as of that revision, for further pages of
        one list. Raises `Compacted` where that revision is not kept. A page may be shorter than `limit`: see
        `has_more`.
        """

    def watch(self, prefix: bytes, *, after: Revision) -> AsyncGenerator[Changes, None]:
        """All changes below the prefix after that revision: in order, each revision once and whole, without gaps.

        The watch survives a lost connection. Raises `Compacted` where the next changes are not kept: read again, and
        watch from the revision of that answer. The caller closes it (`contextlib.aclosing`).
        """

    async def open_session(self, ttl_s: int, *, is_alive: Callable[[], bool] = lambda: True) -> Session:
        """Opens a session that is kept alive while `is_alive` returns true, asked before each keep-alive. The caller
        closes it.

        `is_alive` adds conditions beyond this task's running, for example that the disk still commits.
        """

    async def close(self) -> None:
        """Ends sessions, watches and connections. Later calls raise `Unavailable`."""


class Compacted(PushqError):
    """The requested history is not kept any more. List again; the changes in between cannot be told."""

    code = "unavailable"

    def __init__(self, detail: str, oldest: Revision):
        super().__init__(detail)
        self.oldest = oldest
        """This revision and newer ones can be read."""


class SessionLost(PushqError):
    """The session is over, and the records that were bound to it are gone or about to go. Open a new one."""

    code = "unavailable"


class UnsupportedServer(PushqError):
    """This server must not be used; the detail says why."""

    code = "unavailable"


async def get(coordinator: Coordinator, key: bytes) -> tuple[Record | None, Revision]:
    """One record as it is now, and the revision at which that was so."""
    outcome = await coordinator.transact(Transaction(then=(Get(key),)))
    return outcome.found[0], outcome.revision


def boot_seconds() -> float:
    """Seconds since this machine was started, including its sleep; setting the wall clock does not change them."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
