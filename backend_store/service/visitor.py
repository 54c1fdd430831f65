"""A visitor: one gateway at one shard of a backend. When its connection is lost, its leases are kept a while for its
return.

Requests of one frame are begun without awaiting in between, so they share a commit; results of one turn of the loop go
out as one frame.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from itertools import islice
from typing import TYPE_CHECKING

import msgspec
import structlog

from backend_store.client.embedded import EmbeddedStore, Forward
from backend_store.client.queue import EmbeddedQueue
from backend_store.client.streams import Gap
from backend_store.client.views import AskView, extending, giving_back
from backend_store.core.leases.leases import Lease
from backend_store.core.leases.session_snapshot import Detached
from backend_store.core.limits import DELAYED_RUNS_MAX
from backend_store.core.ready.attempt_policy import Outcome
from backend_store.model import (
    CHUNK_MESSAGES_MAX,
    Claim,
    InvalidRequest,
    NotFound,
    Overloaded,
    Published,
    PushqError,
    QueueDefinition,
    Unavailable,
)
from backend_store.node.publishing.moved_away import on_the_move
from backend_store.node.views.view import View
from backend_store.service.ask_room import AskRoom
from backend_store.service.asked import queue_at
from backend_store.service.handing import Grant, counter_of, frames_of, live_bits
from backend_store.service.limits import (
    GAPS_IN_DOUBT_MAX,
    LEASES_PER_LOOK_MAX,
    SESSION_KEEP_SECONDS_MAX,
    VISITOR_ASKS_MAX,
    VISITOR_OUTBOX_BYTES_MAX,
    VISITOR_OWN_ASKS_MAX,
    VISITOR_SILENCE_SECONDS_MAX,
)
from backend_store.service.operations import Operation, decode_operation, perform
from backend_store.service.tailing import Tailing, tailing_of
from backend_store.service.telling import Telling
from backend_store.tracing import TRACE, Served
from backend_store.wire.store_frames import (
    NOT_LEADER,
    Answered,
    Asks,
    Bits,
    Ended,
    Grouped,
    GroupNews,
    Handed,
    Idle,
    Known,
    Place,
    Placed,
    Publish,
    Publishes,
    Results,
    Settle,
    Settles,
    Tails,
    Traces,
    Turned,
    Want,
    Wants,
    Wrong,
    blocks_of_sent,
    of_bits,
    pack,
    placed,
    raw,
    to_bits,
    wrong,
)

if TYPE_CHECKING:
    from backend_store.service.serving import Link, StoreService

log = structlog.get_logger("pushq.backend")

LOOK_SECONDS = 0.05
"""How soon a gateway is told that another caller settled messages of its leases."""
GRANTS_LOOKED_AT_MIN = 1_000
"""With fewer grants, those of deleted queues are not looked for."""


_LETTING_GO = ("return", "unsent", "undeliverable")
"""Verbs that gateways use for leases without receipts."""
_UNANSWERED = ("detach", "keep")
_ABOUT_SESSIONS = (*_UNANSWERED, "take")
_TURNED = wrong(PushqError("the shard is about to be led elsewhere", code=NOT_LEADER))


class Visitor:
    """One gateway at one shard. `link` is None while the gateway is not connected."""

    def __init__(self, service: StoreService, name: str):
        self.name = name
        self.link: Link | None = None
        self.gives_sessions = False
        """See `Greeting.gives_sessions`."""
        self.keeps_s = 0.0
        """How long its leases wait, beyond the usual time, after it has stopped: others may take them."""
        self._telling: Telling | None = None
        """Sends the definitions; None while the gateway is not connected."""
        self._service = service
        self._store = service.store
        self._loop = asyncio.get_running_loop()
        self._grants: dict[tuple[Place, int], Grant] = {}
        self._reads: dict[Place, Tailing] = {}
        self._look_at = GRANTS_LOOKED_AT_MIN
        """The number of grants at which those of deleted queues are looked for."""
        self._leases: dict[str, tuple[Grant, Lease, int]] = {}
        """Token → its grant, the lease, and the bits that the gateway holds as far as it knows."""
        self._released = self._accounted = 0
        self._look: asyncio.TimerHandle | None = None
        self._looking: Iterator[str] | None = None
        """The leases that a look has not come to yet; None while no look is in progress."""
        self._told_gaps: deque[tuple[float, EmbeddedQueue, list[Gap]]] = deque(maxlen=GAPS_IN_DOUBT_MAX)
        """Gaps that groups were told, and when."""
        self._asks: set[asyncio.Task[None]] = set()
        self._ask_room = AskRoom("are under way for this gateway", VISITOR_ASKS_MAX, own_max=VISITOR_OWN_ASKS_MAX)
        self._is_flushing = False
        self._has_heard = asyncio.Event()
        """Set when the gateway knows that it was referred to the next leader, is gone, or was not referred: it sends no
        more."""
        self._has_heard.set()
        self._detached: dict[str, int] = {}
        """Token → bits of messages that stay leased when the gateway has ended: their clients may come by any
        gateway."""
        self._turned: dict[str, int] = {}
        """Token → bits that were acked or nacked while the shard was about to go: the next leader decides about
        these."""
        self.pending_bytes = 0
        """Bytes of leases that wait for the disk."""
        self._clear()

    def _clear(self) -> None:
        self._placed: list[tuple[int, Placed | None, Wrong | None]] = []
        self._judged: list[tuple[int, Grouped | None, Wrong | None]] = []
        self._handed: list[Handed] = []
        self._handed_bytes = 0
        self._idle: list[Idle] = []
        self._lost: list[tuple[str, Bits]] = []
        self._gone: list[tuple[str, Bits]] = []
        self._missed: list[tuple[Place, list[Gap]]] = []
        self._groups_gone: list[Place] = []
        self._moved: set[Place] = set()
        self._answers: list[Answered] = []

    # ---------------------------------------------------------------------------------------- connecting and leaving

    def arrive(
        self, link: Link, held: list[tuple[Place, str, Bits]], known: Known | None = None
    ) -> list[tuple[Place, str]]:
        """The gateway connects, and holds these leases from before. Returns those that are not known here. `known`: see
        `Greeting`."""
        self.link = link
        self._telling = Telling(self._store.node, link, known, self._flush_soon)
        self._clear()
        kept = {token: to_bits(bits) for _, token, bits in held}
        for token, (grant, lease, known_bits) in list(self._leases.items()):
            live, mine = live_bits(lease) & known_bits, kept.get(token, 0)
            self._take_back(grant, lease, live & ~mine, is_unsent=True)
            self._tell_gone(token, mine & ~live)  # the lost connection may have told it before, or not
            self._note(token, mine & live)
        places = {token: place for place, token, _ in held}
        for view, token in self._store.node.kept_at.pop(self.name, ()):
            if (restored := view.core.leases.get(token)) is not None:
                self._take_up(view, restored, places.get(token), kept.get(token, 0))
        return [(place, token) for place, token, _ in held if token not in self._leases]

    def _take_up(self, view: View, lease: Lease, place: Place | None, kept: int) -> None:
        """Resumes a lease from before this process led. Messages that the gateway has stay leased to it; messages that
        have not reached it are with no consumer, and need not wait for the visibility timeout."""
        parts = [part for part in lease.parts() if part.gateway == self.name]
        live = sum(part.bits for part in parts)
        for part in parts:
            if unheard := part.bits & ~kept:
                _free(view, part, unheard, is_unsent=True)
        if place is None or not live & kept:
            return
        try:
            grant = Grant(self, place, queue_at(self._store, place), 0)
        except PushqError:
            return  # the queue is deleted, which ends its leases
        for part in parts:
            part.holder = grant
        self._leases[lease.token] = grant, lease, live & kept
        self._tell_gone(lease.token, kept & ~live)

    def _tell_gone(self, token: str, bits: int) -> None:
        """Messages that the gateway holds as far as it knows were settled by another caller, or their leases have
        expired."""
        if bits:
            self._gone.append((token, of_bits(bits)))
            self._flush_soon()

    def depart(self) -> list[tuple[Grant, Lease]]:
        """The connection is gone: nothing more is leased to the gateway. Returns the leases that had not been sent
        yet."""
        self.link = None
        if self._telling is not None:
            self._telling.break_off()
        self._telling = None
        self._has_heard.set()
        unsent = [(grant, lease) for grant in self._grants.values() for lease in grant.pending]
        for grant in self._grants.values():
            counter_of(grant.queue).leave(grant)
            grant.drop_pending()
        self._grants.clear()
        for tailing in self._reads.values():
            tailing.leave(self)
        self._reads.clear()
        self._clear()
        self._put_back_gaps()
        return unsent

    def _put_back_gaps(self) -> None:
        """Gaps told recently may have been lost with the connection: they are told again."""
        since = self._loop.time() - 2 * VISITOR_SILENCE_SECONDS_MAX
        for at, group, gaps in self._told_gaps:
            if at >= since:
                group.put_back_gaps(gaps)
        self._told_gaps.clear()

    def take_back_unsent(self, leases: list[tuple[Grant, Lease]]) -> None:
        """Returns leases that were never sent, where the gateway has departed for good: the messages are ready
        again."""
        for grant, lease in leases:
            self._take_back(grant, lease, live_bits(lease), is_unsent=True)

    def send_on(self, leader: str) -> None:
        """Refers the gateway to `leader`, which is about to lead the shard: from here on nothing is begun for it."""
        if self.link is None:
            return
        self._has_heard.clear()
        if self._telling is not None and self._telling.is_midway:
            self._telling.break_off()
        self.link.send(pack(Turned(_TURNED, leader)))

    async def finish(self) -> None:
        """After `send_on`: returns when the gateway sends no more, and its requests are answered."""
        await self._has_heard.wait()
        if self._asks:
            await asyncio.wait(self._asks)

    def forget(self) -> None:
        """The gateway did not come back: its messages are ready again, and the attempts count."""
        for token, (grant, lease, bits) in list(self._leases.items()):
            live, stays = live_bits(lease) & bits, self._detached.get(token, 0)
            view = grant.queue.view_of(lease)
            if live & stays and view is not None and not grant.queue.deleted:
                view.core.pass_on(lease, live & stays, Detached())
                view.partition.ride_along()
            self._take_back(grant, lease, live & ~stays, is_unsent=False)
        self._leases.clear()
        self._detached.clear()
        if self._look is not None:
            self._look.cancel()
        for task in self._asks:
            task.cancel()

    def _take_back(self, grant: Grant, lease: Lease, bits: int, *, is_unsent: bool) -> None:
        view = grant.queue.view_of(lease)
        if view is None or not bits or grant.queue.deleted:
            return
        for part in list(lease.parts()):
            if mine := part.bits & bits:
                _free(view, part, mine, is_unsent=is_unsent)

    # ------------------------------------------------------------------------------------------------------ requests

    def heard(self, frame: Publishes | Settles | Wants | Asks) -> None:
        if self._service.is_leaving:
            self._turn_away(frame)
            return
        match frame:
            case Publishes(calls, traces):
                for publish in calls:
                    self._publish(publish, traces)
            case Settles(calls, traces):
                for settle in calls:
                    self._settle(settle, traces)
            case Wants(wants):
                for want in wants:
                    self._want(want)
            case Asks():
                self._ask(frame)

    def _turn_away(self, frame: Publishes | Settles | Wants | Asks) -> None:
        """Begins nothing of the frame, so that the gateway may ask the next leader; leases that it returns are returned
        here."""
        match frame:
            case Publishes(calls):
                self._placed += [(publish.number, None, _TURNED) for publish in calls]
            case Settles(calls):
                for settle in calls:
                    if settle.verb in _LETTING_GO:
                        self._settle(settle, None)
                    elif settle.verb not in _UNANSWERED:
                        self._leave_to_next(settle)
                        self._judged.append((settle.number, None, _TURNED))
            case Wants(wants):
                if not wants:
                    self._has_heard.set()  # the next leader is told the wants
            case Asks(number):
                self._answers.append(Answered(number, wrong=_TURNED))
        self._flush_soon()

    def _leave_to_next(self, settle: Settle) -> None:
        """Messages that are returned after an ack or a nack must not be ready before it."""
        for token, bits in settle.grouped.items() if settle.verb != "extend" else ():
            if token in self._leases:
                self._turned[token] = self._turned.get(token, 0) | to_bits(bits)

    def _publish(self, call: Publish, traces: Traces | None) -> None:
        span = self._span("append", call, call.tenant, call.name, traces)

        def done(result: Placed | PushqError) -> None:
            if span is not None:
                span.ended(result.code if isinstance(result, PushqError) else None)
            if isinstance(result, PushqError):
                self._placed.append((call.number, None, wrong(result)))
            else:
                self._placed.append((call.number, result, None))
            self._flush_soon()

        publish_in(self._store, call, done)

    def _span(
        self, operation: str, call: Publish | Settle, tenant: str, queue: str, traces: Traces | None
    ) -> Served | None:
        """A span for a call that comes with a trace; None without a tracer."""
        tracer = self._service.tracer
        if traces is None or tracer is None or (parent := traces.get(call.number)) is None:
            return None
        return tracer.served(operation, parent, queue=queue, tenant=tenant, shard=self._service.shard)

    def _settle(self, call: Settle, traces: Traces | None) -> None:
        span = self._span(call.verb, call, call.place.tenant, call.place.name, traces)
        try:
            queue = queue_at(self._store, call.place)
            grouped = {token: to_bits(bits) for token, bits in call.grouped.items()}
            if call.verb in _LETTING_GO:
                self._let_go(call, grouped)
                return
            if call.verb in _ABOUT_SESSIONS:
                self._change_hands(call, grouped)
                return
            ask = self._verb(queue, call)
        except PushqError as error:
            if span is not None:
                span.ended(error.code)
            self._judged.append((call.number, None, wrong(error)))
            self._flush_soon()
            return

        def done(result: dict[str, int] | PushqError) -> None:
            if span is not None:
                span.ended(result.code if isinstance(result, PushqError) else None)
            if isinstance(result, PushqError):
                self._judged.append((call.number, None, wrong(result)))
            else:
                if call.verb != "extend":
                    self._account(result)
                else:
                    self._detach_elsewhere(result)
                told = {token: of_bits(bits) for token, bits in result.items()}
                self._judged.append((call.number, told, None))
            self._flush_soon()

        queue.ask_grouped(grouped, ask, done)

    def _verb(self, queue: EmbeddedQueue, call: Settle) -> AskView:
        match call.verb:
            case "ack":
                return View.settle if call.milliseconds is None else View.settle_soon
            case "nack":
                delay_ms = call.milliseconds
                if delay_ms and not queue.can_delay:
                    detail = f"queue {queue.name!r}: {DELAYED_RUNS_MAX} batches wait for their time; nack without delay"
                    raise Overloaded(detail, retry_after_ms=1000)
                due_ms = self._store.steady_ms() + delay_ms if delay_ms else delay_ms
                return giving_back(due_ms, call.reason, tried=call.tried)
            case "extend":
                return extending(call.milliseconds or 0)
        raise InvalidRequest(f"{call.verb!r} is nothing that is done with receipts")

    def _let_go(self, call: Settle, grouped: dict[str, int]) -> None:
        """Ends leases at the gateway's own request (return, unsent, undeliverable); no answer is awaited."""
        for token, bits in grouped.items():
            known = self._leases.get(token)
            view = known[0].queue.view_of(known[1]) if known is not None else None
            if known is None or view is None:
                continue
            here = bits & known[2] & ~self._turned.get(token, 0)  # others may have been taken by another gateway
            for part in list(known[1].parts()):
                if mine := part.bits & here:
                    if call.verb == "undeliverable":
                        view.undeliverable(part, mine, call.reason)
                    else:
                        _free(view, part, mine, is_unsent=call.verb == "unsent")
            self._note(token, known[2] & ~bits)

    def _change_hands(self, call: Settle, grouped: Mapping[str, int]) -> None:
        match call.verb:
            case "take":
                self._take(call, grouped)
            case "keep":
                self.keeps_s = min(SESSION_KEEP_SECONDS_MAX, (call.milliseconds or 0) / 1000)
            case "detach":
                for token, bits in grouped.items():
                    self._detach(token, bits)

    def _detach(self, token: str, bits: int) -> None:
        if token in self._leases:
            self._detached[token] = self._detached.get(token, 0) | bits

    def _detach_elsewhere(self, extended: Mapping[str, int]) -> None:
        """A client extended leases here that it got by another gateway: they do not end with that one."""
        for token in extended.keys() - self._leases.keys():
            for other in self._service.visitors.values():
                other._detach(token, extended[token])

    def _take(self, call: Settle, grouped: Mapping[str, int]) -> None:
        """Takes over leases from other gateways, whose session has come to this one. Answers with those that it has
        now; where leases are stored, once it is stored that they are this gateway's."""
        taken: dict[str, int] = {}
        storing: set[View] = set()
        for token, bits in grouped.items():
            known = self._leases.get(token)
            found = known[2] & bits if known is not None else 0  # more than none if the request is a repeat
            for other in self._service.visitors.values():
                if other is not self and found != bits:
                    found |= other._pass_on(token, bits & ~found, self, call.place)
            if found:
                taken[token] = found
                view = self._leases[token][0].queue.view_of(self._leases[token][1])
                if view is not None and view.core.policy.stores_leases:
                    storing.add(view)
        waits = len(storing)

        def stored(result: object) -> None:
            nonlocal waits
            waits -= 1
            if waits <= 0:
                answer = {token: of_bits(bits) for token, bits in taken.items()}
                self._judged.append((call.number, answer, None))
                self._flush_soon()

        for view in storing:
            view.when_durable(stored)
        if not storing:
            stored(None)

    def _pass_on(self, token: str, bits: int, to: Visitor, place: Place) -> int:
        """Hands messages of a lease to another gateway. Returns those that were held."""
        known = self._leases.get(token)
        view = known[0].queue.view_of(known[1]) if known is not None else None
        if known is None or view is None or known[0].queue.deleted:
            return 0
        grant, lease, mine = known
        before = to._leases.get(token)
        holder = before[0] if before is not None else Grant(to, place, grant.queue, grant.visibility_ms)
        passed = view.core.pass_on(lease, bits & mine, holder)
        if passed:
            to._leases[token] = holder, lease, passed | (before[2] if before is not None else 0)
            self._tell_gone(token, passed)
            self._note(token, mine & ~passed)
        return passed

    def _want(self, want: Want) -> None:
        key = want.place, want.visibility_ms
        grant = self._grants.get(key)
        if not want.most:
            self._end(key)
            return
        try:
            if grant is None or grant.queue.deleted:
                queue = queue_at(self._store, want.place)
                if queue.config.kind == "stream" and queue.group is None and not queue.is_companion:
                    self._read(want, queue)
                    return
                if grant is not None:
                    grant.drop_pending()
                self._forget_gone()
                grant = self._grants[key] = Grant(self, want.place, queue, want.visibility_ms)
                counter_of(queue).enter(grant)
        except NotFound:
            self.group_gone(want.place)
            return
        except PushqError:
            return  # the gateway learns of the queue's end from the definitions
        grant.granted = want.granted
        grant.most = min(max(1, want.most), CHUNK_MESSAGES_MAX)
        counter = counter_of(grant.queue)
        if grant.wants() > 0:
            counter.add(grant)
        else:
            counter.remove(grant)

    def _end(self, key: tuple[Place, int]) -> None:
        """Ends a grant; the gateway counts anew when it wants messages of that place again."""
        if (grant := self._grants.pop(key, None)) is not None:
            unsent = [(grant, lease) for lease in grant.pending]
            counter_of(grant.queue).leave(grant)
            grant.drop_pending()
            self.take_back_unsent(unsent)

    def _forget_gone(self) -> None:
        """Drops grants of deleted queues and groups, as the gateway does not end these itself. The next look comes when
        there are twice as many as this one left: with many queues, each further one must not cost a look at all."""
        if len(self._grants) + len(self._reads) < self._look_at:
            return
        for key, grant in list(self._grants.items()):
            if grant.queue.deleted:
                counter_of(grant.queue).leave(grant)
                grant.drop_pending()
                del self._grants[key]
        for place, tailing in list(self._reads.items()):
            if tailing.is_over:
                tailing.leave(self)
                del self._reads[place]
        self._look_at = max(GRANTS_LOOKED_AT_MIN, 2 * (len(self._grants) + len(self._reads)))

    def _read(self, want: Want, stream: EmbeddedQueue) -> None:
        if want.granted:
            self._forget_gone()
            tailing = self._reads[want.place] = tailing_of(stream)
            tailing.enter(self, want.place)
        elif (known := self._reads.pop(want.place, None)) is not None:
            known.leave(self)

    def tail_moved(self, place: Place) -> None:
        """A stream that this gateway reads has changed."""
        self._moved.add(place)
        self._flush_soon()

    def _ask(self, ask: Asks) -> None:
        try:
            asked = decode_operation(ask.what)
            self._ask_room.take(ask.whose)
        except msgspec.MsgspecError as error:
            self._answer(Answered(ask.number, wrong=wrong(InvalidRequest(f"the request does not parse: {error}"))))
            return
        except Overloaded as error:
            self._answer(Answered(ask.number, wrong=wrong(error)))
            return
        task = self._loop.create_task(self._performed(ask, asked), name="gateway request")
        self._asks.add(task)
        task.add_done_callback(partial(self._ask_ended, ask.whose))

    def _ask_ended(self, whose: str | None, task: asyncio.Task[None]) -> None:
        self._asks.discard(task)
        self._ask_room.give(whose)

    async def _performed(self, ask: Asks, asked: Operation) -> None:
        number, tracer, span = ask.number, self._service.tracer, None
        if tracer is not None and ask.trace is not None:
            span = tracer.served(_name_of(type(asked)), ask.trace, shard=self._service.shard)
            TRACE.set(span.trace)  # of this task: its log lines belong to the trace
        outcome: str | None = None
        try:
            answer = Answered(number, raw(await perform(self._store, asked)))
        except PushqError as error:
            outcome = error.code
            answer = Answered(number, wrong=wrong(error))
        except Exception:
            outcome = PushqError.code
            log.exception("a request failed", gateway=self.name)
            answer = Answered(number, wrong=wrong(PushqError("the backend made a mistake; its log has more")))
        finally:
            if span is not None:
                span.ended(outcome)
        self.tell_definitions()  # the caller of an answered request sees its change
        self._answer(answer)

    def _answer(self, answer: Answered) -> None:
        self._answers.append(answer)
        self._flush_soon()

    # --------------------------------------------------------------------------------------------------- leases

    @property
    def has_room(self) -> bool:
        """Whether more may be leased. Bytes that are sent at the end of this turn, or after the next commit, count."""
        if self.link is None or self._service.is_leaving or self._store.node.why_not_durable():
            return False
        waiting_bytes = self.link.waiting_bytes + self._handed_bytes + self.pending_bytes
        return waiting_bytes < VISITOR_OUTBOX_BYTES_MAX

    def room(self) -> None:
        """The connection takes bytes again."""
        if self._telling is not None:
            self._telling.room()
        for grant in list(self._grants.values()):
            if grant.wants() > 0:
                counter_of(grant.queue).add(grant)

    def room_soon(self) -> None:
        self._loop.call_soon(self.room)

    def remember(self, grant: Grant, lease: Lease) -> None:
        self._leases[lease.token] = grant, lease, lease.bits

    def hand(self, grant: Grant, lease: Lease) -> None:
        """Sends a lease to the gateway, at the end of this turn."""
        chunk, lease.chunk = lease.chunk, None
        if chunk is None or not lease.bits or self.link is None:
            return
        view = grant.queue.view_of(lease)
        assert view is not None, "a lease was just taken from it"
        attempts = {n: tries for n, tries in lease.state.attempts.items() if lease.bits >> n & 1}
        self._handed.append(
            Handed(
                grant.place,
                grant.visibility_ms,
                lease.token,
                of_bits(lease.bits),
                attempts,
                chunk.data,
                view.partition.replica,
                chunk.partition,
                lease.receipts,
            )
        )
        self._handed_bytes += len(chunk.data)
        self._flush_soon()

    def missed(self, place: Place, gaps: list[Gap], group: EmbeddedQueue) -> None:
        """A stream dropped messages before the group read them."""
        self._missed.append((place, gaps))
        self._told_gaps.append((self._loop.time(), group, gaps))
        self._flush_soon()

    def group_gone(self, place: Place) -> None:
        self._groups_gone.append(place)
        self._flush_soon()

    def idle(self, grant: Grant) -> None:
        self._idle.append(Idle(grant.place, grant.visibility_ms, grant.granted))
        self._flush_soon()

    def _note(self, token: str, bits: int) -> None:
        """Sets the bits of a lease that the gateway holds as far as it knows; none ends the lease."""
        grant, lease, _ = self._leases[token]
        if bits:
            self._leases[token] = grant, lease, bits
        else:
            del self._leases[token]
            self._detached.pop(token, None)

    def _account(self, done: dict[str, int]) -> None:
        """The gateway's own receipts ended these messages: their answers tell it."""
        for token, bits in done.items():
            if (known := self._leases.get(token)) is not None:
                self._note_accounted(known[2] & bits)
                self._note(token, known[2] & ~bits)

    def _note_accounted(self, bits: int) -> None:
        """Counts messages whose end the gateway is told. During a look it is unknown whether they were counted at its
        begin: another look follows."""
        if self._looking is None:
            self._accounted += bits.bit_count()

    def released(self, count: int) -> None:
        self._released += count
        self._look_soon()

    def _look_soon(self) -> None:
        if self._look is None:
            self._look = self._loop.call_later(LOOK_SECONDS, self._look_at_leases)

    def _look_at_leases(self) -> None:
        """Tells the gateway which of its messages other callers have settled: else its consumers' credit would stay
        taken. It may hold very many, so a look is spread over turns of the loop."""
        self._look = None
        if self._looking is None:
            if self._released == self._accounted:
                return
            self._accounted = self._released
            self._looking = iter(list(self._leases))
        tokens = list(islice(self._looking, LEASES_PER_LOOK_MAX))
        for token in tokens:
            if (known := self._leases.get(token)) is None:
                continue
            _, lease, bits = known
            live = live_bits(lease)
            if gone := bits & ~live:
                self._gone.append((token, of_bits(gone)))
                self._note(token, bits & live)
        self._flush_soon()
        if len(tokens) < LEASES_PER_LOOK_MAX:
            self._looking = None
        if self._looking is not None or self._released != self._accounted:
            self._look_soon()

    def lost(self, ended: dict[str, int]) -> None:
        for token, bits in ended.items():
            if (known := self._leases.get(token)) is not None:
                self._lost.append((token, of_bits(bits)))
                self._note_accounted(bits)
                self._note(token, known[2] & ~bits)
        self._flush_soon()

    # ----------------------------------------------------------------------------------------- answers and news

    def tell_definitions(self) -> None:
        """Sends what changed of the definitions, before any frame that depends on it."""
        if self._telling is not None:
            self._telling.definitions()

    def tell_documents(self) -> None:
        """As `tell_definitions`, for documents alone."""
        if self._telling is not None:
            self._telling.documents()

    def _flush_soon(self) -> None:
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Sends everything that waits to be sent."""
        self._is_flushing = False
        if self._telling is not None and self._telling.is_midway:
            return  # until the definitions are complete
        link, had_room = self.link, self.has_room
        if link is not None:
            try:
                self._say(link)
            except Exception:
                # It would be sent again with the next frame, and fail again: the next connection begins anew.
                log.exception("a gateway could not be told", gateway=self.name)
                link.abort()
        self._clear()
        if self.has_room and not had_room:
            self.room()

    def _say(self, link: Link) -> None:
        if self._placed or self._judged:
            link.send(pack(Results(self._placed, self._judged)))
        if self._lost or self._gone:
            link.send(pack(Ended(self._lost, self._gone)))
        if self._missed or self._groups_gone:
            link.send(pack(GroupNews(self._missed, self._groups_gone)))
        if moved := [(place, self._reads[place].now()) for place in self._moved if place in self._reads]:
            link.send(pack(Tails(moved)))
        for frame in frames_of(self._handed, self._idle):
            link.send(pack(frame))
        for answer in self._answers:
            link.send(pack(answer))


def publish_in(store: EmbeddedStore, call: Publish, reply: Callable[[Placed | PushqError], None]) -> None:
    """Publishes to a queue that is here; `reply` is called when the publish is as safe as the queue promises, or
    refused."""

    def done(result: Published | PushqError) -> None:
        reply(result if isinstance(result, PushqError) else placed(result, store.node.copies()))

    try:
        target = store.target_of(call.tenant, call.name)
        if target.uid != call.uid and not isinstance(target, Forward):
            # A payload that was encrypted for the earlier queue of that name opens in no other.
            raise Unavailable(f"queue {call.name!r} was made anew", retry_after_ms=100)
        if isinstance(target, EmbeddedQueue) and _is_behind(call, target.definition):
            raise on_the_move(call.name)
    except PushqError as error:
        done(error)
        return
    claim = Claim(*call.claim) if call.claim is not None else None
    until_ms = store.steady_ms() + call.budget_ms
    target.publish(blocks_of_sent(call.blocks), done, claim, until_ms=until_ms)


def _is_behind(call: Publish, known: QueueDefinition) -> bool:
    """Whether another place may know a call as a repeat without the sender's knowledge. With strict order no call of
    such a gateway may overtake one that is."""
    if call.version >= known.since:
        return False
    has_ids = any(one.traits is not None and one.traits.ids is not None for one in call.blocks)
    return call.claim is not None or has_ids or known.config.ordering == "strict"


@cache
def _name_of(kind: type[Operation]) -> str:
    """`TakeReport` → `take_report`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


def _free(view: View, lease: Lease, bits: int, *, is_unsent: bool) -> None:
    """Returns messages of a lease: as never sent, or with the attempt counted."""
    view.decide_first()
    if not is_unsent and view.comes_behind(lease, partial(_free, view, lease, bits, is_unsent=False)):
        return
    if is_unsent:
        view.core.unsent(lease, bits)
        view.partition.ride_along()
        view.on_ready()
    elif view.core.give_back(lease, bits, now_ms=view.partition.steady_ms(), outcome=Outcome.RETURNED):
        view.partition.request()
