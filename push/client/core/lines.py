"""Which of the messages that wait may begin: side by side, or one after the other where their order counts.

A line is what must not overtake: the messages of one key, or all of them. Its next message begins when the handler of
the one before is done; what is behind one that comes again goes back, too.
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
    """What to do with those that wait."""

    begin: Delivery | None
    back: list[Delivery]
    """Their leases are lost, or those of messages before them in their line."""


class Lines:
    """The lines of one subscription. `asked` is the user's word; without one the queue decides."""

    def __init__(self, state: SubscriptionState, asked: InOrder | None) -> None:
        self._state = state
        self._asked = asked
        self._busy: set[Line] = set()

    def line_of(self, delivery: Delivery) -> Line:
        """Without a key a strict queue is in one order as a whole."""
        order = self._usual(delivery) if self._asked is None else self._asked
        key = delivery.message.key
        if order == "key" and key is not None:
            return "key", key
        return _EVERYTHING if order else None

    def choose(self, waiting: Iterable[Delivery]) -> Choice:
        """The first of these that may begin now."""
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
        """The next one may begin."""
        self._busy.discard(line)

    def behind(self, line: Line, waiting: Iterable[Delivery]) -> list[Delivery]:
        """Those of the line that wait."""
        return [] if line is None else [delivery for delivery in waiting if self.line_of(delivery) == line]

    def back_behind(self, failed: Delivery) -> How:
        """How those go back that are behind one that comes again. Nobody began with them, so it was no attempt; unless
        only the queue's back-off keeps them behind it, for that counts by attempts."""
        state, nack = self._state, failed.given_back
        untried = How("nack", state, tried=False)
        if nack is None or failed.is_lost or state.is_kept_in_order:
            return untried
        if nack.delay_ms is None and nack.tried and state.retry_backoff_ms:
            return How("nack", state)
        return untried._replace(delay_ms=nack.delay_ms)

    def _usual(self, delivery: Delivery) -> InOrder:
        """A strict queue keeps the order of its keys. In a group with offsets an ack covers all before it, and what
        has no receipt was settled when it was sent: there the place in the stream is what counts."""
        state = self._state
        if delivery.receipt is None or (state.asked.group is not None and state.mode != "leases"):
            return True
        return "key" if state.ordering == "strict" else False
