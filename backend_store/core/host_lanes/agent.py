"""A host as a delivery agent: borrows messages from the owners of lanes and delivers each once, while its lease lasts.

The agent's time runs from its request, not from the arrival of the grant, which may have been long on its way, while
the owner's time ran. Messages that cannot be delivered in time are not delivered at all; the agent need not report
that, because the owner's time runs out as well.

A grant that the agent no longer waits for is given back, if it is the first answer to a request of this incarnation. Of
any other grant the agent may have delivered everything: it is a duplicate of one that was taken, or was made to an
earlier incarnation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from backend_store.core.host_lanes.lending import LaneReceipt, LeaseId
from backend_store.core.host_lanes.limits import (
    ASK_AGAIN_MS,
    ASKS_FORGOTTEN_MAX,
    BULK_LEASE_MESSAGES_MAX,
    BULK_LEASE_MS_MAX,
)


class AskId(NamedTuple):
    """Unique among the requests of a host: an incarnation is one run of it, a number one request of that run."""

    incarnation: int
    number: int


class LoanAsked(NamedTuple):
    """Agent to owner: asks for messages on a bulk lease."""

    request: AskId
    lane: int
    messages_max: int
    lease_ms: int


class LoanGranted(NamedTuple):
    """Owner to agent: the lent messages, as (offset, message)."""

    request: AskId
    lease: LeaseId
    messages: tuple[tuple[int, Any], ...]


class UnsentReturned(NamedTuple):
    """Agent to owner: these messages were not delivered, and will not be."""

    lease: LeaseId
    offsets: tuple[int, ...]


class HandedOut(NamedTuple):
    """A message on its way to a consumer, which holds it until `until_ms` by the agent's steady clock."""

    receipt: LaneReceipt
    message: Any
    until_ms: int


class Agent:
    """The messages of one queue that were lent to one host. `now_ms` is its steady clock."""

    def __init__(
        self, incarnation: int, *, lease_ms: int = BULK_LEASE_MS_MAX, messages_max: int = BULK_LEASE_MESSAGES_MAX
    ):
        self._lease_ms = min(lease_ms, BULK_LEASE_MS_MAX)
        self._messages_max = min(messages_max, BULK_LEASE_MESSAGES_MAX)
        self._incarnation = incarnation
        self._number = 0
        self._asked: dict[int, tuple[LoanAsked, int]] = {}
        """The pending request of each lane, and when it was made."""
        self._forgotten: dict[AskId, None] = {}
        """Requests without an answer that the agent no longer waits for."""
        self._unsent: deque[HandedOut] = deque()

    def ask(self, lanes: Iterable[int], now_ms: int) -> list[LoanAsked]:
        """Returns the requests to the owners of these lanes: none while messages are left to deliver."""
        self._drop_expired(now_ms)
        if self._unsent:
            return []
        asks = []
        for lane in lanes:
            before, since_ms = self._asked.get(lane, (None, now_ms - ASK_AGAIN_MS))
            if now_ms - since_ms >= ASK_AGAIN_MS:
                if before is not None:
                    self._forget(before.request)
                self._number += 1
                ask = LoanAsked(AskId(self._incarnation, self._number), lane, self._messages_max, self._lease_ms)
                self._asked[lane] = ask, now_ms
                asks.append(ask)
        return asks

    def _forget(self, request: AskId) -> None:
        self._forgotten[request] = None
        if len(self._forgotten) > ASKS_FORGOTTEN_MAX:
            del self._forgotten[next(iter(self._forgotten))]

    def nothing_granted(self, request: AskId) -> None:
        """Notes that the owner has nothing to lend: it may be asked again at once."""
        for lane, (ask, _) in list(self._asked.items()):
            if ask.request == request:
                del self._asked[lane]

    def take(self, grant: LoanGranted, now_ms: int) -> UnsentReturned | None:
        """Takes the messages of a grant, or returns those to give back. Ignores a grant that was handled before."""
        ask, asked_ms = self._asked.get(grant.lease.lane, (None, 0))
        until_ms = asked_ms + self._lease_ms
        if ask is None or ask.request != grant.request:
            if grant.request not in self._forgotten:
                return None
            del self._forgotten[grant.request]
            return UnsentReturned(grant.lease, tuple(offset for offset, _ in grant.messages))
        del self._asked[grant.lease.lane]
        if now_ms >= until_ms:
            return UnsentReturned(grant.lease, tuple(offset for offset, _ in grant.messages))
        for offset, message in grant.messages:
            self._unsent.append(HandedOut(LaneReceipt(grant.lease, offset), message, until_ms))
        return None

    def hand_out(self, now_ms: int) -> HandedOut | None:
        """Returns the next message for a consumer; None if more must be requested first."""
        self._drop_expired(now_ms)
        return self._unsent.popleft() if self._unsent else None

    def return_unsent(self) -> list[UnsentReturned]:
        """Gives back all messages that were not delivered, because the host drains or its consumers are gone."""
        by_lease: dict[LeaseId, list[int]] = {}
        for one in self._unsent:
            by_lease.setdefault(one.receipt.lease, []).append(one.receipt.offset)
        self._unsent.clear()
        return [UnsentReturned(lease, tuple(offsets)) for lease, offsets in by_lease.items()]

    def _drop_expired(self, now_ms: int) -> None:
        """Drops messages whose lease is over. The leases of several lanes end at different times."""
        if any(one.until_ms <= now_ms for one in self._unsent):
            self._unsent = deque(one for one in self._unsent if one.until_ms > now_ms)

    @property
    def unsent(self) -> Sequence[HandedOut]:
        return tuple(self._unsent)
