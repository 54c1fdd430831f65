"""Which of the waiting messages may begin: side by side, or one after the other if their order counts.

A line is a set of messages that must not overtake each other: those of one key, or all of them. Its next message begins
when the handler of the one before is done; if a message comes again, those behind it go back as well.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import NamedTuple

from push.client.core.leases import Delivery
from push.client.core.settling import How
from push.client.core.subscriptions import SubscriptionState
from push.client.model import InOrder

Line = Hashable | None
"""None: in no line, side by side with all others."""

_EVERYTHING = "everything"


class Choice(NamedTuple):
    """What to do with waiting messages."""

    begin: Delivery | None
    back: list[Delivery]
    """Their leases are lost, or those of messages before them in their line."""


class Lines:
    """The lines of one subscription. `asked` is the user's `in_order`; None leaves it to the queue."""

    def __init__(self, state: SubscriptionState, asked: InOrder | None) -> None:
        self._state = state
        self._asked = asked
        self._busy: set[Line] = set()

    def line_of(self, delivery: Delivery) -> Line:
        """The line of a message. On a strict queue, messages without a key are in one line with all that have none."""
        order = self._usual(delivery) if self._asked is None else self._asked
        key = delivery.message.key
        if order == "key" and key is not None:
            return "key", key
        return _EVERYTHING if order else None

    def choose(self, waiting: Iterable[Delivery]) -> Choice:
        """The first of these that may begin now, and those to give back."""
        back: list[Delivery] = []
        broken: set[Line] = set()
        for delivery in waiting:
            line = self.line_of(delivery)
            if delivery.is_lost or (line is not None and line in broken):
                back.append(delivery)
                broken.add(line)
            elif line is None or line not in self._busy:
                return Choice(delivery, back)
        return Choice(None, back)

    def begin(self, line: Line) -> None:
        """A handler begins with a message of this line: the next one waits."""
        if line is not None:
            assert line not in self._busy, f"two handlers in line {line}"
            self._busy.add(line)

    def end(self, line: Line) -> None:
        """The line's next message may begin."""
        self._busy.discard(line)

    def behind(self, line: Line, waiting: Iterable[Delivery]) -> list[Delivery]:
        """The waiting messages of the line."""
        return [] if line is None else [delivery for delivery in waiting if self.line_of(delivery) == line]

    def back_behind(self, failed: Delivery) -> How:
        """How to give back the messages behind one that comes again. No handler began with them, so they do not count
        as attempts; unless only the queue's backoff keeps them behind it, as backoff grows with attempts."""
        state, nack = self._state, failed.given_back
        untried = How("nack", state, tried=False)
        if nack is None or failed.is_lost or state.is_kept_in_order:
            return untried
        if nack.delay_ms is None and nack.tried and state.retry_backoff_ms:
            return How("nack", state)
        return untried._replace(delay_ms=nack.delay_ms)

    def _usual(self, delivery: Delivery) -> InOrder:
        """The order if the user names none. A strict queue keeps the order of its keys. In a group with offsets an ack
        covers all messages before it, and messages without receipts were settled when they were sent: there the order
        of the stream counts."""
        state = self._state
        if delivery.receipt is None or (state.asked.group is not None and state.mode != "leases"):
            return True
        return "key" if state.ordering == "strict" else False
