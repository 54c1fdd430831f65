"""The leases of one subscription's messages: which to extend while handlers run, and which have ended."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from push.client.frames import WireMessage

if TYPE_CHECKING:
    from push.client.core.settling import How
    from push.client.core.subscriptions import SubscriptionState

GRANULES = 10
"""Leases due within a tenth of the extension interval share one frame."""


class Delivery:
    """One delivered message and the state of its lease. `receipt` is None if there is nothing to settle."""

    __slots__ = (
        "bucket",
        "given_back",
        "hold_until",
        "is_handed",
        "is_in_doubt",
        "is_lost",
        "is_settled",
        "message",
        "receipt",
        "subscription",
        "wait_lost",
    )

    def __init__(
        self, message: WireMessage, receipt: str | None, subscription: SubscriptionState, hold_until: float
    ) -> None:
        self.message = message
        self.receipt = receipt
        self.subscription = subscription
        self.hold_until = hold_until
        self.given_back: How | None = None
        """How the message was given back; None if it was acked or is not settled."""
        self.bucket: dict[str, Delivery] | None = None
        self.is_handed = False
        self.is_in_doubt = False
        """Its session is gone, and it is not known whether the lease is, too: only its ack will tell."""
        self.is_lost = False
        self.is_settled = False
        self.wait_lost: object = None

    def is_overdue(self, now: float) -> bool:
        """Whether it has waited for as long as a handler may take, and no handler has begun with it."""
        return not self.is_handed and self.hold_until <= now


class Leases:
    """Held deliveries of one subscription, by receipt and by the time when their lease is due for extension."""

    def __init__(self, *, extension_s: float | None, handler_limit_s: float) -> None:
        self.extension_s = extension_s
        self.handler_limit_s = handler_limit_s
        self._held: dict[str, Delivery] = {}
        self._buckets: dict[float, dict[str, Delivery]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, delivery: Delivery, now: float) -> None:
        """Starts to hold a delivery, or goes on holding it."""
        receipt = delivery.receipt
        assert receipt is not None, "a delivery without a receipt has no lease"
        self._held[receipt] = delivery
        if self.extension_s is not None:
            self._schedule(delivery, receipt, now)

    def hand(self, delivery: Delivery, now: float) -> None:
        """The user has the message from now on: the handler's limit counts from here."""
        delivery.is_handed = True
        delivery.hold_until = now + self.handler_limit_s

    def held(self, receipt: str) -> Delivery | None:
        """The delivery held with this receipt, or None."""
        return self._held.get(receipt)

    def release(self, receipt: str) -> Delivery | None:
        """Stops to hold a delivery, whatever the reason; None if it was not held."""
        delivery = self._held.pop(receipt, None)
        if delivery is not None and delivery.bucket is not None:
            delivery.bucket.pop(receipt, None)
            delivery.bucket = None
        return delivery

    def release_through(self, acked: Delivery) -> None:
        """Stops to hold a delivery, and with it all that its partition delivered before."""
        if acked.receipt not in self._held:
            return
        partition, covered = acked.message.partition, list[Delivery]()
        for delivery in self._held.values():  # in the order of delivery
            if delivery.message.partition == partition:
                covered.append(delivery)
            if delivery is acked:
                break
        for delivery in covered:
            delivery.is_settled = True
            self.release(delivery.receipt or "")

    def release_all(self) -> list[Delivery]:
        """Stops to hold everything: the session that held the leases is gone."""
        deliveries = list(self._held.values())
        self._held.clear()
        self._buckets.clear()
        for delivery in deliveries:
            delivery.bucket = None
        return deliveries

    def due(self, now: float) -> list[Delivery]:
        """Deliveries to extend now; they are due again an interval later. Past the handler's limit a lease is left to
        expire.

        Deliveries that no handler has begun with by then are included for the last time: see `is_overdue`.
        """
        deliveries: list[Delivery] = []
        for due_at in [due_at for due_at in self._buckets if due_at <= now]:
            for receipt, delivery in self._buckets.pop(due_at).items():
                delivery.bucket = None
                if delivery.is_settled:
                    continue
                if delivery.hold_until > now:
                    deliveries.append(delivery)
                    self._schedule(delivery, receipt, now)
                elif not delivery.is_handed:
                    deliveries.append(delivery)
        return deliveries

    def all_due(self, now: float) -> None:
        """Makes everything held due now, if leases are extended at all."""
        if self.extension_s is None or not self._held:
            return
        self._buckets = {now: dict(self._held)}
        for delivery in self._held.values():
            delivery.bucket = self._buckets[now]

    def doubt_all(self) -> None:
        """The session that held the leases is gone: they may be, too."""
        for delivery in self._held.values():
            delivery.is_in_doubt = True

    def next_due(self) -> float:
        """When `due` has something next; buckets are kept in the order in which they fall due."""
        return next(iter(self._buckets), math.inf)

    def set_extension(self, extension_s: float, now: float) -> None:
        """Sets the interval once it is known, and schedules what is held by it."""
        if extension_s == self.extension_s:
            return
        self.extension_s = extension_s
        self._buckets.clear()
        for receipt, delivery in self._held.items():
            self._schedule(delivery, receipt, now)

    def _schedule(self, delivery: Delivery, receipt: str, now: float) -> None:
        assert self.extension_s is not None
        granule = self.extension_s / GRANULES
        due_at = ((now + self.extension_s) // granule) * granule
        bucket = self._buckets.get(due_at)
        if bucket is None:
            bucket = self._buckets[due_at] = {}
        bucket[receipt] = delivery
        delivery.bucket = bucket
