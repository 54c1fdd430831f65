"""A visitor: one gateway at one shard of a backend. When its connection is lost, its leases are kept a while for its
return.

Requests of one frame are begun without awaiting in between, so they share a commit; results of one turn of the loop go
out as one frame.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING

import msgspec
import structlog

from backend_store.client.embedded import EmbeddedStore, Forward
from backend_store.client.queue import EmbeddedQueue
from backend_store.client.streams import Gap
from backend_store.client.views import AskView, extending, giving_back
from backend_store.core.leases.leases import Lease
from backend_store.core.limits import DELAYED_RUNS_MAX
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
from backend_store.service.handing import Grant, counter_of, frames_of
from backend_store.service.held_leases import HeldLeases, detach_kept, take_back_unsent
from backend_store.service.limits import (
    GAPS_IN_DOUBT_MAX,
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
        self.leases = HeldLeases(self, self._store)
        self._told_gaps: deque[tuple[float, EmbeddedQueue, list[Gap]]] = deque(maxlen=GAPS_IN_DOUBT_MAX)
        """Gaps that groups were told, and when."""
        self._asks: set[asyncio.Task[None]] = set()
        self._ask_room = AskRoom("are under way for this gateway", VISITOR_ASKS_MAX, own_max=VISITOR_OWN_ASKS_MAX)
        self._is_flushing = False
        self._has_heard = asyncio.Event()
        """Set when the gateway knows that it was referred to the next leader, is gone, or was not referred: it sends no
        more."""
        self._has_heard.set()
        self.pending_bytes = 0
        """Bytes of leases that wait for the disk."""
        self._clear()

    def _clear(self) -> None:
        self._placed: list[tuple[int, Placed | None, Wrong | None]] = []
        self._judged: list[tuple[int, Grouped | None, Wrong | None]] = []
        self._handed: list[Handed] = []
        self._handed_bytes = 0
        self._idle: list[Idle] = []
        self.leases.lost, self.leases.gone, self.leases.gone_before = [], [], []
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
        self._telling = Telling(self._store.node, link, known, self.flush_soon)
        self._clear()
        return self.leases.arrive(held)

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
        """The gateway did not come back."""
        self.leases.forget()
        for task in self._asks:
            task.cancel()

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
                        if settle.verb != "extend":  # what is returned after an ack must not be ready before it
                            self.leases.leave_to_next(settle.grouped)
                        self._judged.append((settle.number, None, _TURNED))
            case Wants(wants):
                if not wants:
                    self._has_heard.set()  # the next leader is told the wants
            case Asks(number):
                self._answers.append(Answered(number, wrong=_TURNED))
        self.flush_soon()

    def _publish(self, call: Publish, traces: Traces | None) -> None:
        span = self._span("append", call, call.tenant, call.name, traces)

        def done(result: Placed | PushqError) -> None:
            if span is not None:
                span.ended(result.code if isinstance(result, PushqError) else None)
            if isinstance(result, PushqError):
                self._placed.append((call.number, None, wrong(result)))
            else:
                self._placed.append((call.number, result, None))
            self.flush_soon()

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
                self.leases.let_go(call.verb, grouped, call.reason)
                return
            if call.verb in _ABOUT_SESSIONS:
                self._change_hands(call, grouped)
                return
            ask = self._verb(queue, call)
        except PushqError as error:
            if span is not None:
                span.ended(error.code)
            self._judged.append((call.number, None, wrong(error)))
            self.flush_soon()
            return

        def done(result: dict[str, int] | PushqError) -> None:
            if span is not None:
                span.ended(result.code if isinstance(result, PushqError) else None)
            if isinstance(result, PushqError):
                self._judged.append((call.number, None, wrong(result)))
            else:
                if call.verb != "extend":
                    self.leases.account(result)
                else:
                    self._detach_elsewhere(result)
                self._judge(call.number, result)
            self.flush_soon()

        queue.ask_grouped(grouped, ask, done)

    def _verb(self, queue: EmbeddedQueue, call: Settle) -> AskView:
        match call.verb:
            case "ack":
                return View.settle if call.milliseconds is None else View.settle_soon
            case "nack":
                delay_ms = call.milliseconds
                if delay_ms and not queue.can_delay:
                    detail = (
                        f"queue {queue.name!r}: {DELAYED_RUNS_MAX} batches of messages are already delayed; nack "
                        "without a delay"
                    )
                    raise Overloaded(detail, retry_after_ms=1000)
                due_ms = self._store.steady_ms() + delay_ms if delay_ms else delay_ms
                return giving_back(due_ms, call.reason, tried=call.tried)
            case "extend":
                return extending(call.milliseconds or 0)
        raise InvalidRequest(f"{call.verb!r} is nothing that is done with receipts")

    def _change_hands(self, call: Settle, grouped: Mapping[str, int]) -> None:
        match call.verb:
            case "take":
                others = [other.leases for other in self._service.visitors.values()]
                self.leases.take(call.place, grouped, others, partial(self._judge, call.number))
            case "keep":
                self.keeps_s = min(SESSION_KEEP_SECONDS_MAX, (call.milliseconds or 0) / 1000)
            case "detach":
                self.leases.detach(grouped)

    def _detach_elsewhere(self, extended: Mapping[str, int]) -> None:
        """A client extended leases here that it got by another gateway: they do not end with that one."""
        strange = {token: bits for token, bits in extended.items() if token not in self.leases}
        if not strange:
            return
        for other in self._service.visitors.values():
            other.leases.detach(strange)
        for kept in self._store.node.kept_at.values():
            detach_kept(kept, strange)

    def _judge(self, number: int, done: Mapping[str, int]) -> None:
        self._judged.append((number, {token: of_bits(bits) for token, bits in done.items()}, None))
        self.flush_soon()

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
            take_back_unsent(unsent)

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
        self.flush_soon()

    def _ask(self, ask: Asks) -> None:
        try:
            asked = decode_operation(ask.what)
            self._ask_room.take(ask.whose)
        except msgspec.MsgspecError as error:
            self._answer(Answered(ask.number, wrong=wrong(InvalidRequest(f"cannot parse the request: {error}"))))
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
            answer = Answered(number, wrong=wrong(PushqError("internal error of the backend; see its log")))
        finally:
            if span is not None:
                span.ended(outcome)
        self.tell_definitions()  # the caller of an answered request sees its change
        self._answer(answer)

    def _answer(self, answer: Answered) -> None:
        self._answers.append(answer)
        self.flush_soon()

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
        self.flush_soon()

    def missed(self, place: Place, gaps: list[Gap], group: EmbeddedQueue) -> None:
        """A stream dropped messages before the group read them."""
        self._missed.append((place, gaps))
        self._told_gaps.append((self._loop.time(), group, gaps))
        self.flush_soon()

    def group_gone(self, place: Place) -> None:
        self._groups_gone.append(place)
        self.flush_soon()

    def idle(self, grant: Grant) -> None:
        self._idle.append(Idle(grant.place, grant.visibility_ms, grant.granted))
        self.flush_soon()

    # ----------------------------------------------------------------------------------------- answers and news

    def tell_definitions(self) -> None:
        """Sends what changed of the definitions, before any frame that depends on it."""
        if self._telling is not None:
            self._telling.definitions()

    def tell_documents(self) -> None:
        """As `tell_definitions`, for documents alone."""
        if self._telling is not None:
            self._telling.documents()

    def flush_soon(self) -> None:
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
        if self.leases.gone_before:
            link.send(pack(Ended([], self.leases.gone_before)))
        if self._placed or self._judged:
            link.send(pack(Results(self._placed, self._judged)))
        if self.leases.lost or self.leases.gone:
            link.send(pack(Ended(self.leases.lost, self.leases.gone)))
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
            raise Unavailable(f"queue {call.name!r} was recreated", retry_after_ms=100)
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
