"""Settling: receipts acked, nacked or extended in one loop turn share a frame, which is repeated after a cut.

Acks may be repeated safely: the server answers `ok` to a receipt that acked before. A repeated nack or extension that
finds its receipt stale had its effect the first time, or no longer matters.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, assert_never

from push.client.config import Limits
from push.client.core.backoff import asked_wait_s, delay_s
from push.client.core.leases import Delivery
from push.client.core.numbering import Numbered, Numbering
from push.client.core.subscriptions import SubscriptionState
from push.client.errors import ApiError, LeaseLost, OutcomeUnknown, Problem, PushqError, api_error, is_definite
from push.client.frames import Ack, Extend, Nack, Ok, PublishPart

Action = Literal["ack", "nack", "extend"]


class Step:
    """What an ack publishes: stored in the same transaction. No two steps are equal, so each has its own frame."""

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[tuple[str, Sequence[Numbered]]]) -> None:
        self.parts = parts


class How(NamedTuple):
    """What to do with receipts; receipts with equal values share a frame."""

    action: Action
    subscription: SubscriptionState
    visibility_timeout_ms: int = 0
    delay_ms: int | None = None
    reason: str | None = None
    tried: bool = True
    """False: no handler began with it, so it does not count as an attempt."""
    step: Step | None = None


class Item(NamedTuple):
    """One receipt to settle. `ticket` is the caller's; None for the client's own extensions."""

    delivery: Delivery
    ticket: object | None


class Group:
    """Receipts that share a frame."""

    __slots__ = ("deadline", "hold_until", "how", "is_repeat", "items", "tries")

    def __init__(self, how: How, deadline: float) -> None:
        self.how = how
        self.items: list[Item] = []
        self.deadline = deadline
        self.hold_until = -math.inf
        self.is_repeat = False
        self.tries = 0


class Settled(NamedTuple):
    """How one settling ended: `error` None means the server has confirmed it."""

    item: Item
    action: Action
    error: PushqError | None

    @property
    def is_stale(self) -> bool:
        """Whether the lease had ended."""
        return isinstance(self.error, LeaseLost) and len(self.error.ids) == 1

    @property
    def is_held_on(self) -> bool:
        """Whether nothing was done and the lease may go on: the server refused for another reason, or one of several
        leases was lost and it does not say which."""
        is_refused = isinstance(self.error, ApiError | LeaseLost) and not self.is_stale
        return is_refused and self.action != "extend"


class Settler:
    """The settling half of a session."""

    def __init__(self, limits: Limits, chance: Callable[[], float], numbering: Numbering) -> None:
        self._limits = limits
        self._chance = chance
        self._numbering = numbering
        self._open: dict[How, Group] = {}
        self._again: deque[Group] = deque()
        self._in_flight: dict[int, Group] = {}

    def __len__(self) -> int:
        return len(self._in_flight) + len(self._again) + len(self._open)

    def owns(self, request_id: int | str | None) -> bool:
        """Whether this is the id of an unanswered frame of ours."""
        return request_id in self._in_flight

    def add(self, how: How, item: Item, now: float) -> None:
        """Add one receipt; it is sent with the next `take`."""
        group = self._open.get(how)
        if group is None:
            group = self._open[how] = Group(how, now + self._limits.settle_timeout_s)
        group.items.append(item)
        if len(group.items) >= self._limits.settle_frame_receipts_max:
            self._again.append(self._open.pop(how))

    def take(self, now: float, next_id: Callable[[], int]) -> list[Ack | Nack | Extend]:
        """The frames to send now; while many are unanswered, receipts gather for the next."""
        if not self._open and not self._again:
            return []
        groups = [group for group in self._again if group.hold_until <= now]
        held = [group for group in self._again if group.hold_until > now]
        groups += self._open.values()
        self._open.clear()
        room = max(0, self._limits.settle_frames_in_flight_max - len(self._in_flight))
        frames = [self._send(group, next_id()) for group in groups[:room]]
        self._again = deque(held)
        for group in groups[room:]:
            self._put_back(group)
        return frames

    def answered(self, request_id: int, ok: Ok) -> list[Settled]:
        """The result of each receipt."""
        group = self._in_flight.pop(request_id, None)
        if group is None:
            return []
        results = {result.receipt: result for result in ok.results or ()}
        if group.how.step is not None:
            return self._step_answered(
                group, group.how.step, is_done=bool(results) and all(result.ok for result in results.values())
            )
        settled: list[Settled] = []
        for item in group.items:
            result = results.get(item.delivery.receipt or "")
            is_done = result is not None and (result.ok or (group.is_repeat and group.how.action == "nack"))
            settled.append(Settled(item, group.how.action, None if is_done else _lost(item, group.how.action)))
        return settled

    def refused(self, request_id: int, problem: Problem, now: float) -> list[Settled]:
        """The server refused the frame: it is sent again if the error is temporary, else all its receipts failed."""
        group = self._in_flight.pop(request_id, None)
        if group is None:
            return []
        error = api_error(problem)
        if group.how.step is not None and not is_definite(error):
            self._step_uncertain(group.how.step)
        if not error.retryable:
            if group.how.step is not None:
                self._step_ended(group.how.step, is_stored=False)
            return [Settled(item, group.how.action, error) for item in group.items]
        if error.retry_after_s is None:
            wait = delay_s(group.tries, 0.0, self._chance(), self._limits)
        else:
            wait = asked_wait_s(error.retry_after_s, self._chance(), self._limits)
        group.hold_until = now + wait
        group.tries += 1
        self._again.appendleft(group)
        return []

    def disconnected(self) -> None:
        """Unanswered frames are sent again, before newer ones."""
        for group in reversed(self._in_flight.values()):
            group.is_repeat = True
            if group.how.step is not None:
                self._step_uncertain(group.how.step)
            self._again.appendleft(group)
        self._in_flight.clear()

    def expire(self, now: float) -> list[Settled]:
        """Give up what the server did not answer in time."""
        late = [request_id for request_id, group in self._in_flight.items() if group.deadline <= now]
        groups = [self._in_flight.pop(request_id) for request_id in late]
        groups += [group for group in self._again if group.deadline <= now]
        self._again = deque(group for group in self._again if group.deadline > now)
        groups += [self._open.pop(how) for how in [how for how, g in self._open.items() if g.deadline <= now]]
        seconds = self._limits.settle_timeout_s
        error = OutcomeUnknown(f"no response within {seconds:g} s: the message may have been settled")
        return [Settled(item, group.how.action, error) for group in groups for item in group.items]

    def fail_all(self, error: PushqError) -> list[Settled]:
        """End everything with `error`: the session is over."""
        groups = [*self._in_flight.values(), *self._again, *self._open.values()]
        self._in_flight.clear()
        self._again.clear()
        self._open.clear()
        return [Settled(item, group.how.action, error) for group in groups for item in group.items]

    def next_wakeup(self, now: float) -> float:
        """When `take` or `expire` next has something to do by itself."""
        times = [group.deadline for group in self._all()]
        times += [group.hold_until for group in self._again if group.hold_until > now]
        return min(times, default=math.inf)

    def _all(self) -> Sequence[Group]:
        return [*self._in_flight.values(), *self._again, *self._open.values()]

    def _put_back(self, group: Group) -> None:
        """No room in flight: the group stays open for more receipts, unless it is full or a repeat."""
        is_full = len(group.items) >= self._limits.settle_frame_receipts_max
        if is_full or group.is_repeat or group.tries or group.how in self._open:
            self._again.append(group)
        else:
            self._open[group.how] = group

    def _send(self, group: Group, request_id: int) -> Ack | Nack | Extend:
        self._in_flight[request_id] = group
        how = group.how
        queue, sub = how.subscription.queue, how.subscription.sub
        receipts = [item.delivery.receipt or "" for item in group.items]
        match how.action:
            case "ack":
                parts = None if how.step is None else self._parts(how.step)
                return Ack(id=request_id, queue=queue, receipts=receipts, sub=sub, publish=parts)
            case "nack":
                return Nack(
                    id=request_id,
                    queue=queue,
                    receipts=receipts,
                    sub=sub,
                    delay_ms=how.delay_ms,
                    reason=how.reason,
                    tried=how.tried,
                )
            case "extend":
                ms = how.visibility_timeout_ms
                return Extend(id=request_id, queue=queue, receipts=receipts, sub=sub, visibility_timeout_ms=ms)
            case _:
                assert_never(how.action)

    def _parts(self, step: Step) -> list[PublishPart]:
        for queue, messages in step.parts:
            self._numbering.assign(queue, messages)
        return [PublishPart(queue=queue, messages=[each.wire for each in messages]) for queue, messages in step.parts]

    def _step_answered(self, group: Group, step: Step, *, is_done: bool) -> list[Settled]:
        """Either all of it was done or nothing; the server does not say which lease had ended."""
        self._step_ended(step, is_stored=is_done)
        error = None if is_done else _lost_together(group)
        return [Settled(item, group.how.action, error) for item in group.items]

    def _step_ended(self, step: Step, *, is_stored: bool) -> None:
        for queue, messages in step.parts:
            if is_stored:
                self._numbering.stored(queue, messages)
            else:
                self._numbering.refused(queue, messages)

    def _step_uncertain(self, step: Step) -> None:
        for _, messages in step.parts:
            self._numbering.uncertain(messages)


def _lost(item: Item, action: Action) -> PushqError:
    message = item.delivery.message
    queue = item.delivery.subscription.queue
    return LeaseLost(
        f'queue "{queue}": {action} of message {message.id} (attempt {message.attempt}) came after its lease had '
        "expired",
        [message.id],
    )


def _lost_together(group: Group) -> PushqError:
    if len(group.items) == 1:
        return _lost(group.items[0], group.how.action)
    ids = [item.delivery.message.id for item in group.items]
    return LeaseLost(
        f'queue "{group.how.subscription.queue}": one of {len(ids)} leases had expired, so none of their messages '
        "was acked and nothing was published",
        ids,
    )


__all__ = ["Action", "Group", "How", "Item", "Settled", "Settler", "Step"]
