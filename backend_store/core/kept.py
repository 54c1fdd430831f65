"""What a clean stop keeps, so that the next start redelivers nothing: leases, and the sessions they belong to."""

from __future__ import annotations

import msgspec


class KeptLease(msgspec.Struct, frozen=True):
    """A lease as it stood; a split lease is kept as its parts, under the same token. `bits` are little-endian."""

    uid: int
    token: str
    base: int
    bits: bytes
    deadline_ms: int
    view: int = 0
    shelf: int = 0
    number: int = 0
    """Of a lease that has a row of its own."""
    gateway: str = ""


class KeptSession(msgspec.Struct, frozen=True):
    """A session that may come back, and the tokens it holds by the queue's place."""

    session: str
    principal_id: str
    held: dict[str, list[str]]
    """`tenant/queue`, or `tenant/stream/group` → tokens; no name has a slash."""


class Kept(msgspec.Struct, frozen=True):
    leases: list[KeptLease]
    sessions: list[KeptSession]
    at_ms: int = 0
    """When it was written, by the clock of the deadlines; 0 from a version that did not say so."""


class Detached:
    """Holds leases whose consumer has not come back yet."""

    gateway = ""

    def released(self, count: int) -> None:
        """Nobody has credit to get back."""

    def lost(self, receipts: list[str], *, ran_out: bool = True) -> None:
        """Nobody is there to be told."""

    def sendable(self) -> None:
        """Nobody is there to send to."""
