"""The session snapshot that a clean stop writes, so that the next start redelivers nothing: leases and sessions."""

from __future__ import annotations

import msgspec


class KeptLease(msgspec.Struct, frozen=True):
    """A lease at the time of the stop. A split lease is kept as parts under one token. `bits` are little-endian."""

    uid: int
    token: str
    base: int
    bits: bytes
    deadline_ms: int
    view: int = 0
    shelf: int = 0
    number: int = 0
    """Key of the lease's own row; 0 if it has none."""
    gateway: str = ""


class KeptSession(msgspec.Struct, frozen=True):
    """A session that may be resumed, and the lease tokens it holds in each queue."""

    session: str
    principal_id: str
    held: dict[str, list[str]]
    """`tenant/queue`, or `tenant/stream/group` → tokens; no name contains a slash."""


class Kept(msgspec.Struct, frozen=True):
    """The whole snapshot of a clean stop."""

    leases: list[KeptLease]
    sessions: list[KeptSession]
    at_ms: int = 0
    """When the snapshot was written, by the clock of the deadlines; 0 from a version that did not record it."""


class Detached:
    """The holder of leases whose consumer has not reconnected yet."""

    gateway = ""

    def released(self, count: int) -> None:
        """Does nothing: there is no consumer whose credit could grow."""

    def lost(self, receipts: list[str], *, ran_out: bool = True) -> None:
        """Does nothing: there is no consumer to notify."""

    def sendable(self) -> None:
        """Does nothing: there is no consumer to send to."""
