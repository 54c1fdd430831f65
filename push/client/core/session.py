"""The session core: the state that lives across connections.

The shell reports what happened (`connect`, `receive`, `disconnected`, `tick`) and carries out what is returned: it
sends the frames of `take`, resolves the waiters in `Effects`, and calls again at `next_wakeup`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import assert_never

import msgspec

from push.client.arguments import check_fields, check_queue
from push.client.config import Limits
from push.client.core.backoff import delay_s
from push.client.core.effects import Effects, Phase
from push.client.core.leases import Delivery
from push.client.core.numbering import Numbering
from push.client.core.publisher import Entry, Publisher
from push.client.core.reconnects import Reconnects
from push.client.core.settling import How, Item, Settled, Settler
from push.client.core.subscriptions import Subscribed, SubscriptionState
from push.client.errors import Problem, PushqError, api_error, is_stop, stop_error
from push.client.frames import (
    AnyClientFrame,
    AnyServerFrame,
    Bye,
    Connect,
    ConnectedFrame,
    Deliver,
    Ended,
    Error,
    GapFrame,
    LostFrame,
    Ok,
    Pong,
    Refresh,
    ResetFrame,
    Resume,
    ServerPing,
    ServerPong,
    Unsubscribe,
)
from push.client.model import Connected, Disconnected, Gap, Lost, Postponed, Reset, Stopped, TraceContext, Unreadable


class SessionCore:
    """One user's session. `chance` returns numbers from 0 to 1 for the jitter."""

    def __init__(self, limits: Limits, chance: Callable[[], float], numbering: Numbering) -> None:
        self.phase = Phase.OFFLINE
        self.error: PushqError | None = None
        self.session: str | None = None
        self.numbering = numbering
        self.publisher = Publisher(limits, chance, numbering)
        self.settler = Settler(limits, chance, numbering)
        self.subscriptions: list[SubscriptionState] = []
        self._limits = limits
        self._chance = chance
        self._last_id = 0
        self._by_sub: dict[int, SubscriptionState] = {}
        self._subscribing: dict[int, SubscriptionState] = {}
        self._leaving: dict[int, int] = {}
        self._urgent: list[AnyClientFrame] = []
        self._unsubscribes: list[int] = []
        self._reconnects = Reconnects(limits, chance)
        self._cut_at = math.inf
        self._bye: Bye | None = None
        self._told: Problem | None = None
        self._ping_s = limits.ping_ms / 1000

    # The connection

    def connect(self, token: str | None, now: float) -> Connect:
        """A socket is connected. Returns the frame that opens, or resumes, the session."""
        assert self.phase is Phase.OFFLINE, f"connect in phase {self.phase}"
        self.phase = Phase.CONNECTING
        self._cut_at = now + self._limits.open_timeout_s
        resume = None if self.session is None else Resume(self.session)
        return Connect(id=self._next_id(), token=token, resume=resume)

    def disconnected(
        self, code: int | None, reason: str, now: float, *, retry_s: float = 0.0, problem: Problem | None = None
    ) -> tuple[float, Effects]:
        """The connection was lost, or could not be made. Returns how many seconds to wait before the next, and the
        effects.

        A close code that forbids a reconnect stops the session, and every waiter gets the error.
        """
        self.phase = Phase.OFFLINE
        self._cut_at = math.inf
        for state in self.subscriptions:
            state.disconnected()
        self._by_sub.clear()
        self._subscribing.clear()
        self._leaving.clear()
        self._urgent.clear()
        self._unsubscribes.clear()
        self.publisher.disconnected()
        self.settler.disconnected()
        stop_code = code if code is not None and is_stop(code) else self._bye_code_that_stops()
        if stop_code is not None:
            error = stop_error(stop_code, reason, self._told)
            effects = self.stop(error)
            effects.events.append(Stopped(error))
            return math.inf, effects
        bye, self._bye, self._told = self._bye, None, None
        asked_s = max(retry_s, bye.retry_ms / 1000 if bye is not None else 0.0)
        wait = self._reconnects.next_wait(asked_s, now)
        effects = Effects.none()
        effects.events.append(Disconnected(reason if bye is None else bye.reason, wait, problem))
        return wait, effects

    def stop(self, error: PushqError) -> Effects:
        """End everything with `error`; the session cannot be used any more."""
        self.phase = Phase.STOPPED
        self.error = error
        effects = Effects.none()
        effects.published.extend(self.publisher.fail_all(error))
        ended = self.settler.fail_all(error)
        effects.settled.extend(settled for settled in ended if settled.item.ticket is not None)
        for state in self.subscriptions:
            state.ended = error
            effects.changed.append(state)
            effects.lost.extend(held for held in state.leases.release_all() if state.lose(held))
        self.subscriptions = []
        return effects

    def receive(self, frames: list[AnyServerFrame], now: float) -> Effects:
        """Handle frames from the server."""
        effects = Effects.none()
        for frame in frames:
            self._receive(frame, now, effects)
        if self.phase is Phase.OPEN and self._bye is None:
            self._cut_at = now + 2 * self._ping_s + self._limits.silence_grace_s
        return effects

    def tick(self, now: float) -> Effects:
        """Time has passed: extend leases, give up requests past their deadline."""
        effects = Effects.none()
        effects.published.extend(self.publisher.expire(now))
        self._settled(self.settler.expire(now), now, effects)
        if self.phase is Phase.OPEN:
            for state in self.subscriptions:
                self._extend_leases(state, now)
        return effects

    def is_dead(self, now: float) -> bool:
        """Whether the server has been silent for too long. If so, the shell cuts the connection, without a closing
        handshake: a cut session keeps its leases for a while, a closed one does not."""
        return now >= self._cut_at

    def take(self, now: float) -> list[AnyClientFrame]:
        """The frames to send now. Acks go before `unsubscribe`, which gives the rest back."""
        if self.phase is not Phase.OPEN:
            return []
        frames, self._urgent = self._urgent, []
        for state in self.subscriptions:
            if state.sub is None:
                frames += self._open(state, now)
            elif state.is_overfull:
                self._pause(state)
            else:
                frames += [frame for frame in (state.credit_back(), state.begun()) if frame is not None]
        frames += self.settler.take(now, self._next_id)
        for sub in self._unsubscribes:
            request_id = self._next_id()
            self._leaving[request_id] = sub
            frames.append(Unsubscribe(id=request_id, sub=sub))
        self._unsubscribes.clear()
        frames += self.publisher.take(now, self._next_id)
        return frames

    def next_wakeup(self, now: float) -> float:
        """When `tick`, `take` or `is_dead` next has something to do by itself."""
        times = [self._cut_at, self.publisher.next_wakeup(now), self.settler.next_wakeup(now)]
        if self.phase is Phase.OPEN:
            for state in self.subscriptions:
                times.append(state.leases.next_due())
                if state.sub is None and state.subscribe_after > now:
                    times.append(state.subscribe_after)
        return min(times)

    @property
    def is_idle(self) -> bool:
        """Whether no request waits for the server's answer."""
        return not self.publisher.unconfirmed and not len(self.settler)

    # Calls of the user

    def publish(
        self,
        queue: str,
        message: msgspec.Raw,
        ticket: object,
        now: float,
        idempotency_key: str | None = None,
        trace: TraceContext | None = None,
        timeout_s: float | None = None,
    ) -> Entry:
        """Publish a message; its outcome comes with `ticket`."""
        self._raise_if_stopped()
        check_queue(queue)
        return self.publisher.add(queue, message, ticket, now, idempotency_key, trace, timeout_s)

    def subscribe(self, asked: Subscribed) -> SubscriptionState:
        """Open a subscription; it is reopened after every cut until `unsubscribe`."""
        self._raise_if_stopped()
        check_queue(asked.queue)
        check_fields(**_sent(asked))
        state = SubscriptionState(asked, self._limits)
        self.subscriptions.append(state)
        return state

    def unsubscribe(self, state: SubscriptionState) -> None:
        """End a subscription: what it holds goes back to the queue at once, without an attempt if no handler began with
        it."""
        if state.is_closed:
            return
        state.is_closed = True
        if state in self.subscriptions:
            self.subscriptions.remove(state)
        if state.sub is not None:
            self._urgent += [frame for frame in (state.begun(),) if frame is not None]
            self._unsubscribes.append(state.sub)
            self._by_sub.pop(state.sub, None)
            state.sub = None
        state.leases.release_all()
        state.inbox.clear()

    def parting(self) -> list[AnyClientFrame]:
        """The last frames of a session that is about to be closed: messages that were begun count as attempts, others
        do not."""
        return [frame for state in self.subscriptions if (frame := state.begun()) is not None]

    def refresh(self, token: str) -> None:
        """Send the server a newer token for this connection."""
        if self.phase is not Phase.STOPPED:
            self._urgent.append(Refresh(token=token))

    def settle(self, how: How, item: Item, now: float) -> None:
        """Ack, nack or extend one delivery."""
        self._raise_if_stopped()
        if how.reason is not None or how.delay_ms or how.visibility_timeout_ms:
            check_fields(reason=how.reason, delay_ms=how.delay_ms, visibility_timeout_ms=how.visibility_timeout_ms)
        if how.step is not None:
            for queue, _ in how.step.parts:
                check_queue(queue)
            for queue, _ in how.step.parts:
                self.numbering.open(queue)
        if how.action != "extend":
            how.subscription.settles(item.delivery, how)
        self.settler.add(how, item, now)

    def give_back(self, how: How, deliveries: Sequence[Delivery], now: float) -> None:
        """Give back waiting messages that no handler has begun with. No caller waits for the answer."""
        state = how.subscription
        state.drop(deliveries)
        for delivery in deliveries:
            if delivery.receipt is not None and not delivery.is_lost and self.phase is not Phase.STOPPED:
                state.settles(delivery, how)
                self.settler.add(how, Item(delivery, None), now)

    # Frames

    def _receive(self, frame: AnyServerFrame, now: float, effects: Effects) -> None:
        match frame:
            case Deliver():
                if (state := self._by_sub.get(frame.sub)) is not None:  # also if it was paused just now
                    state.delivered(frame, now)
                    self._see_stamps(frame)
                    self._give_back_unread(state, frame, now, effects)
                    effects.changed.append(state)
            case Ok():
                self._ok(frame, now, effects)
            case Error():
                self._error(frame, now, effects)
            case ServerPing():
                self._urgent.append(Pong())
            case ServerPong():
                pass
            case ConnectedFrame():
                self._connected(frame, now, effects)
            case Bye():
                self._bye = frame
                self._cut_at = now + self._limits.drain_timeout_s
            case LostFrame():
                self._lost(frame, effects)
            case GapFrame() | ResetFrame() | Ended():
                if (state := self._by_sub.get(frame.sub)) is not None:
                    self._moved(state, frame, now, effects)
            case _:
                assert_never(frame)

    def _give_back_unread(self, state: SubscriptionState, frame: Deliver, now: float, effects: Effects) -> None:
        """Gives back messages that cannot be decoded, with the reason; the others of the frame are delivered."""
        for unread in frame.unread:
            delivery, reason = state.set_aside(unread), f"the consumer cannot decode it: {unread.why}"
            if delivery.receipt is not None:
                how = How("nack", state, reason=reason[: self._limits.reason_chars_max])
                self.settler.add(how, Item(delivery, None), now)
            effects.events.append(Unreadable(state.queue, unread.id, reason))

    def _see_stamps(self, frame: Deliver) -> None:
        """Messages published because of these must sort after them."""
        for message in frame.messages:
            if message.ordering is None:
                return  # a queue that is not sorted stamps none of its messages
            self.numbering.seen(message.ordering.get("timestamp"))

    def _connected(self, frame: ConnectedFrame, now: float, effects: Effects) -> None:
        is_resumed = self.session is not None and frame.session == self.session
        self.phase = Phase.OPEN
        self._reconnects.opened(now)
        if frame.ping_ms:
            self._ping_s = frame.ping_ms / 1000
        for state in self.subscriptions:
            state.is_taken_up = is_resumed
            if not is_resumed:
                state.session_gone(now)
        self.session = frame.session
        for state in self.subscriptions:
            if state.was_subscribed and state.cursor is None and state.is_at_latest:
                effects.events.append(Reset(state.queue, None))
        effects.events.append(Connected(frame.session, is_resumed))

    def _ok(self, frame: Ok, now: float, effects: Effects) -> None:
        if self.publisher.owns(frame.id):
            assert isinstance(frame.id, int)
            effects.published.extend(self.publisher.answered(frame.id, frame, now))
        elif self.settler.owns(frame.id):
            assert isinstance(frame.id, int)
            self._settled(self.settler.answered(frame.id, frame), now, effects)
        elif isinstance(frame.id, int) and (state := self._subscribing.pop(frame.id, None)) is not None:
            if frame.sub is None or state.is_closed:
                self._unsubscribes += [] if frame.sub is None else [frame.sub]
                return
            state.subscribed(frame, now)
            self._by_sub[frame.sub] = state
            effects.changed.append(state)
        elif isinstance(frame.id, int) and (sub := self._leaving.pop(frame.id, None)) is not None:
            self._by_sub.pop(sub, None)

    def _error(self, frame: Error, now: float, effects: Effects) -> None:
        if self.publisher.owns(frame.id):
            assert isinstance(frame.id, int)
            effects.published.extend(self.publisher.refused(frame.id, frame.problem, now))
        elif self.settler.owns(frame.id):
            assert isinstance(frame.id, int)
            self._settled(self.settler.refused(frame.id, frame.problem, now), now, effects)
        elif isinstance(frame.id, int) and (state := self._subscribing.pop(frame.id, None)) is not None:
            self._end_or_retry(state, frame.problem, now, effects)
        else:
            self._told = frame.problem  # the reason of the close that follows

    def _moved(
        self, state: SubscriptionState, frame: GapFrame | ResetFrame | Ended, now: float, effects: Effects
    ) -> None:
        match frame:
            case GapFrame():
                effects.events.append(Gap(state.queue, frame.start, frame.end, frame.partition))
            case ResetFrame():
                state.cursor = frame.cursor
                effects.events.append(Reset(state.queue, frame.cursor))
            case Ended():
                self._by_sub.pop(frame.sub, None)
                self._end_or_retry(state, frame.problem, now, effects)
            case _:
                assert_never(frame)

    def _end_or_retry(self, state: SubscriptionState, problem: Problem, now: float, effects: Effects) -> None:
        """A subscription was refused or ended: it is requested again if the error is temporary, else its reader gets
        the error."""
        error = api_error(problem)
        state.sub = None
        if error.retryable and not state.is_closed:
            asked_s = error.retry_after_s or 0.0
            wait_s = delay_s(state.tries, asked_s, self._chance(), self._limits)
            state.subscribe_after = now + wait_s
            state.tries += 1
            effects.events.append(Postponed(state.queue, problem, wait_s))
            return
        state.ended = error
        if state in self.subscriptions:
            self.subscriptions.remove(state)
        effects.changed.append(state)

    def _lost(self, frame: LostFrame, effects: Effects) -> None:
        # Not by `sub`: after a resume one subscription of a queue may be told of the leases of another.
        for state in self.subscriptions:
            self._tell_lost(state.lost(frame.receipts), effects)

    def _settled(self, settled: list[Settled], now: float, effects: Effects) -> None:
        for result in settled:
            delivery, is_asked = result.item.delivery, result.item.ticket is not None
            if is_asked and result.is_held_on:
                delivery.subscription.hold_again(delivery, now)
            if result.action == "extend" and result.error is None:
                delivery.is_in_doubt = False
            is_stale = result.is_stale and not delivery.is_lost and (is_asked or not delivery.is_in_doubt)
            # Our own extension may cross the user's ack in transit: then the lease ended as it should.
            if is_stale and (is_asked or not delivery.is_settled) and delivery.subscription.lose(delivery):
                self._tell_lost([delivery], effects)
            if is_asked:
                effects.settled.append(result)

    def _tell_lost(self, deliveries: list[Delivery], effects: Effects) -> None:
        if deliveries:
            effects.lost.extend(deliveries)
            ids = tuple(delivery.message.id for delivery in deliveries)
            effects.events.append(Lost(deliveries[0].subscription.queue, ids))

    def _extend_leases(self, state: SubscriptionState, now: float) -> None:
        if state.leases.next_due() > now:
            return
        how = How("extend", state, visibility_timeout_ms=state.visibility_timeout_ms)
        untried = How("nack", state, tried=False)
        for delivery in state.leases.due(now):
            if delivery.is_overdue(now):
                state.lose(delivery)  # the handler before it hangs: other consumers may have it
                self.settler.add(untried, Item(delivery, None), now)
            else:
                self.settler.add(how, Item(delivery, None), now)

    def _bye_code_that_stops(self) -> int | None:
        return self._bye.code if self._bye is not None and is_stop(self._bye.code) else None

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def _open(self, state: SubscriptionState, now: float) -> list[AnyClientFrame]:
        is_due = state.subscribe_after <= now and not state.is_resting
        if not is_due or state in self._subscribing.values():
            return []
        request_id = self._next_id()
        self._subscribing[request_id] = state
        return [state.subscribe(request_id)]

    def _pause(self, state: SubscriptionState) -> None:
        """Unsubscribes while the reader has more than enough messages: those without receipts come as fast as the
        socket is read.

        The queue keeps the rest. Reading the socket must go on: the reader may be waiting for an answer on it.
        """
        assert state.sub is not None
        self._unsubscribes.append(state.sub)
        state.rest()

    def _raise_if_stopped(self) -> None:
        if self.error is not None:
            raise self.error


def _sent(asked: Subscribed) -> dict[str, object]:
    """The fields of the request, by the names that the server has for them."""
    return {
        "credit": asked.credit,
        "ack": asked.ack,
        "group": asked.group,
        "from": asked.start,
        "visibility_timeout_ms": asked.visibility_timeout_ms,
    }
