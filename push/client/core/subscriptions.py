"""One subscription across all its connections: its position, the messages it holds, and its credit."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from push.client.config import Limits
from push.client.core.leases import Delivery, Leases
from push.client.errors import PushqError
from push.client.frames import Begin, Credit, Deliver, Ok, Subscribe, UnreadMessage, WireMessage
from push.client.model import AckMode, From

if TYPE_CHECKING:
    from push.client.core.settling import How


class Subscribed(msgspec.Struct, frozen=True, kw_only=True):
    """The user's arguments."""

    queue: str
    credit: int
    ack: AckMode = "manual"
    group: str | None = None
    start: From | None = None
    visibility_timeout_ms: int | None = None
    extend_leases: bool = True
    handler_limit_s: float = 300.0


class SubscriptionState:
    """The core's view of one subscription; the shell takes messages from it (`take`) and reads `ended`."""

    def __init__(self, asked: Subscribed, limits: Limits) -> None:
        self.asked = asked
        self.sub: int | None = None
        self.cursor: str | None = None
        self.inbox: deque[Delivery] = deque()
        self.ended: PushqError | None = None
        self.is_closed = False
        self.was_subscribed = False
        self.is_taken_up = False
        """The session was resumed after a cut, and the server does not know yet which messages of the subscription
        arrived."""
        self.subscribe_after = -math.inf
        self.is_resting = False
        self.tries = 0
        self._limits = limits
        self._consumed = 0
        self._begun: list[Delivery] = []
        """Handed to the user, and not yet reported to the server."""
        self._is_stream = False
        self.mode: str | None = None
        """Of a group: `offsets` or `leases`."""
        self.ordering: str | None = None
        self.retry_backoff_ms = 0
        """Of the queue: how long a nacked message waits without a delay of its own."""
        self.visibility_timeout_ms = asked.visibility_timeout_ms or limits.visibility_timeout_ms
        self.leases = Leases(extension_s=self._extension_s(), handler_limit_s=asked.handler_limit_s)

    @property
    def queue(self) -> str:
        return self.asked.queue

    @property
    def commits(self) -> bool:
        """Whether an ack covers all earlier messages of its partition: true for a group with offsets."""
        return self.mode == "offsets"

    @property
    def is_kept_in_order(self) -> bool:
        """Whether the server holds back the messages behind one that comes again."""
        return self.ordering == "strict" or self.commits

    def subscribe(self, request_id: int) -> Subscribe:
        """The frame that opens the subscription, or after a cut reopens it at its position."""
        start = self.asked.start if self.cursor is None else {"cursor": self.cursor}
        if self.asked.group is not None and self.was_subscribed:
            start = None  # the group has moved on, and the server knows its position
        unread = len(self.inbox) if self._is_stream else 0
        self._consumed = 0
        return Subscribe(
            id=request_id,
            queue=self.queue,
            credit=max(1, self.asked.credit - unread),
            ack=self.asked.ack,
            group=self.asked.group,
            start=start,
            visibility_timeout_ms=self.asked.visibility_timeout_ms,
            attempts="begun" if self.asked.ack == "manual" else None,
        )

    def subscribed(self, ok: Ok, now: float) -> None:
        """Takes the server's number of the subscription, and the rest of its answer."""
        self.sub = ok.sub
        self.was_subscribed = True
        self.tries = 0
        self._move_to(ok.cursor)
        self.mode = ok.mode
        self.ordering = ok.ordering
        self.retry_backoff_ms = ok.retry_backoff_ms or 0
        if ok.visibility_timeout_ms is not None and self.asked.visibility_timeout_ms is None:
            self.visibility_timeout_ms = ok.visibility_timeout_ms
            if (extension_s := self._extension_s()) is not None:
                self.leases.set_extension(extension_s, now)
        if self.is_taken_up and self.commits:
            self.leases.all_due(now)  # what is not extended soon is redelivered, and nothing newer comes until then
        self.is_taken_up = False

    def delivered(self, frame: Deliver, now: float) -> None:
        """Messages arrived: their leases run from now on."""
        hold_until = now + self.asked.handler_limit_s
        is_manual = self.asked.ack == "manual"
        for message in frame.messages:
            # With automatic acks a receipt is of no use: the server settled the message when it sent it.
            delivery = Delivery(message, message.receipt if is_manual else None, self, hold_until)
            if delivery.receipt is not None:
                self.leases.hold(delivery, now)
            self.inbox.append(delivery)
        self._move_to(frame.cursor)
        self._consumed += len(frame.unread) if self._is_stream else 0  # no reader will take them

    def set_aside(self, unread: UnreadMessage) -> Delivery:
        """The delivery of a message that no reader gets, because it cannot be decoded."""
        message = WireMessage(unread.id, unread.seq, unread.partition, receipt=unread.receipt)
        delivery = Delivery(message, unread.receipt if self.asked.ack == "manual" else None, self, -math.inf)
        delivery.is_settled = True
        return delivery

    def take(self, now: float) -> Delivery | None:
        """The next message for the user. One without a receipt returns its credit here, as no ack will."""
        while self.inbox:
            if self.inbox[0].is_lost:
                self.inbox.popleft()
            else:
                return self.begin(self.inbox[0], now)
        return None

    def begin(self, delivery: Delivery, now: float) -> Delivery:
        """The user begins with this message of the inbox."""
        self.inbox.remove(delivery)
        if delivery.receipt is None:
            self._consumed += self._is_stream
            self.is_resting = self.is_resting and len(self.inbox) > self.asked.credit
        else:
            self.leases.hand(delivery, now)
            self._begun.append(delivery)
        return delivery

    def drop(self, deliveries: Iterable[Delivery]) -> None:
        """Removes messages from the inbox: no handler will begin with them."""
        dropped = set(deliveries)
        self.inbox = deque(delivery for delivery in self.inbox if delivery not in dropped)

    def wait_on(self, deliveries: Iterable[Delivery], now: float) -> None:
        """Renews how long these may wait for their turn: their line moves, so they may wait for one more handler."""
        for delivery in deliveries:
            delivery.hold_until = now + self.asked.handler_limit_s

    def begun(self) -> Begin | None:
        """The frame that reports the messages that the user has begun with. For settled ones the ack or nack says
        so."""
        if self.sub is None or not self._begun:
            return None
        begun, self._begun = self._begun, []
        receipts = [each.receipt for each in begun if each.receipt is not None and not each.is_settled]
        return Begin(sub=self.sub, receipts=receipts) if receipts else None

    @property
    def owes_credit(self) -> bool:
        """Whether enough of a stream was consumed to be worth a `credit` frame. Elsewhere the server counts by
        itself."""
        return self._is_stream and self._consumed >= self.asked.credit * self._limits.credit_return_fraction

    @property
    def is_overfull(self) -> bool:
        """Whether more messages wait than the user's credit justifies. Possible only if the server settles by itself:
        with automatic acks, and on a queue that delivers at most once."""
        return not self._is_stream and len(self.inbox) > self.asked.credit * self._limits.auto_inbox_factor

    @property
    def is_at_latest(self) -> bool:
        """Whether it begins at the end of a stream each time, because its position is not stored."""
        return self.asked.start == "latest" and self.asked.group is None

    @property
    def needs_step(self) -> bool:
        """Whether the session has something to send because of what was just taken."""
        return bool(self._begun) or self.owes_credit or (self.sub is None and not self.is_resting)

    def rest(self) -> None:
        """Suspends the subscription until the reader has caught up."""
        self.sub = None
        self.is_resting = True

    def credit_back(self) -> Credit | None:
        """A `credit` frame, once enough was consumed to be worth one."""
        if self.sub is None or not self.owes_credit:
            return None
        frame = Credit(sub=self.sub, n=self._consumed)
        self._consumed = 0
        return frame

    def disconnected(self) -> None:
        """Forgets the server's number, which belonged to the connection."""
        self.sub = None

    def session_gone(self, now: float) -> None:
        """Drops waiting messages: a new session does not hold the old one's leases, so they will come again.

        What the user holds stays: its ack still counts while no other consumer was given the message. It is extended at
        once: if only a gateway is gone and not the store, its lease goes on.
        """
        self._begun.clear()
        for delivery in self.inbox:
            if delivery.receipt is not None:
                self.leases.release(delivery.receipt)
        self.inbox = deque(delivery for delivery in self.inbox if delivery.receipt is None)
        self.leases.doubt_all()
        self.leases.all_due(now)

    def settles(self, delivery: Delivery, how: How) -> None:
        """The user has settled it. In a group with offsets an ack covers all earlier messages of the partition as
        well."""
        delivery.is_settled = True
        delivery.given_back = None if how.action == "ack" else how
        if how.action == "ack" and self.commits:
            self.leases.release_through(delivery)
        else:
            self.leases.release(delivery.receipt or "")

    def hold_again(self, delivery: Delivery, now: float) -> None:
        """The server refused to settle it for a reason other than its lease: the user may try something else."""
        if not self.is_closed and not delivery.is_lost and delivery.receipt is not None:
            delivery.is_settled = False
            delivery.given_back = None
            self.leases.hold(delivery, now)

    def let_go(self, delivery: Delivery) -> None:
        """Its handler has ended, and settling it failed: the lease is left to expire."""
        self.leases.release(delivery.receipt or "")

    def lose(self, delivery: Delivery) -> bool:
        """The server ended this lease. True if the user must be told; a waiting message is just dropped."""
        delivery.is_lost = True
        self.leases.release(delivery.receipt or "")
        return delivery.is_handed

    def lost(self, receipts: Sequence[str]) -> list[Delivery]:
        """The server ended these leases. Returns the deliveries that the user must be told of."""
        held = (self.leases.held(receipt) for receipt in receipts)
        return [delivery for delivery in held if delivery is not None and self.lose(delivery)]

    def _move_to(self, cursor: str | None) -> None:
        """Sets the position to resume from; that of a group is stored by the server."""
        if cursor is not None and self.asked.group is None:
            self.cursor = cursor
            self._is_stream = True

    def _extension_s(self) -> float | None:
        if not self.asked.extend_leases or self.asked.ack == "auto":
            return None
        return self.visibility_timeout_ms / 1000 * self._limits.lease_extension_fraction or None
