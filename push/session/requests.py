"""Handlers of a WebSocket client's requests, one function a frame: publish, settle, subscribe.

Each handler checks the frame, asks the store, and returns; the answer goes out when the store calls back. A refusal is
raised, and the session sends it under the request's id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from backend_store.client import GroupQueue, Queue, SettledAndPublished, Start, by_token, open_group
from backend_store.model import (
    InvalidRequest,
    Overloaded,
    Published,
    PushqError,
    QueueConfig,
    QueueNotFound,
    Verdict,
)
from push.delivery.start_position import checked_start, stream_start
from push.encoding.publish_reply import published_ok, refusal
from push.limits import CREDIT_DEFAULT, CREDIT_MAX, OUTBOX_BYTES_SOFT_MAX, SUBSCRIPTIONS_PER_SESSION_MAX
from push.operations.checks import (
    check_delay,
    check_has_groups,
    checked_credit,
    checked_group,
    checked_idempotency_key,
    checked_reason,
    checked_visibility,
    field,
    gap_fields,
    results,
    visibility_of,
)
from push.operations.publish_gate import check_publish
from push.operations.transaction import Output, outputs, published_rows
from push.ports import KeyOf, Prepared, Target
from push.protocol import (
    RECEIPTS_PER_REQUEST_MAX,
    Ack,
    AckPublish,
    Begin,
    Connect,
    Credit,
    Extend,
    Nack,
    Ping,
    Pong,
    Publish,
    PublishHead,
    Refresh,
    RequestId,
    Subscribe,
    Unsubscribe,
)
from push.session.credentials import refresh
from push.session.pending_request import PendingRequest
from push.session.subscriptions import StreamSubscription, WorkSubscription
from push.traces import checked_trace
from throttling.room import Room

if TYPE_CHECKING:
    from push.session.session import Session, Subscription


log = structlog.get_logger("pushq.session")

Held = tuple[Room, str, int]
"""Bytes of a tenant's publish that is not durable yet, to be given back to the room."""

# --------------------------------------------------------------------------------------------------- publish


def publish(session: Session, frame: Any, messages: Any, *, plain: bool = False, came: float | None = None) -> None:
    """Handles a publish. `came`: when the frame arrived, by the loop's clock, if it waited for something since."""
    desk = session.hub.desk
    assert session.principal is not None
    try:
        queue = desk.publish_to(session.principal, frame.queue)
    except QueueNotFound:
        since = session.hub.loop.time() if came is None else came
        made = desk.made_by_publish(session.principal, frame.queue, session.waits_until(frame, since))
        if made is None:
            raise
        session.began()
        task = session.hub.loop.create_task(made, name="auto-create")
        task.add_done_callback(partial(_made, session, frame, messages, plain, since))
        return
    check_publish(session.hub, queue.config)
    until = session.hub.waits_until(frame.timeout_ms, came)
    prepared = _prepared(session, frame, queue, messages, plain=plain)
    held = _held(session, prepared.size)
    verdict = session.hub.throttle.publish(session.who, ((frame.queue, prepared.blocks),), until)
    store = partial(_store, session, frame, queue, prepared, held, len(messages), session.hub.until_ms(until))
    session.gate.enter(verdict, store, partial(_over_rate, session, "publish", frame, held))


def _held(session: Session, size: int) -> Held:
    """Takes room for a publish of `size` bytes. Raises `Overloaded`."""
    assert session.principal is not None
    intake, tenant = session.hub.intake, session.principal.tenant
    intake.take(tenant, size)
    return intake.room, tenant, size


def refuse_early(session: Session, head: PublishHead, before: tuple[int, int]) -> None:
    """Raises `Overloaded` if load refuses the publish whatever its messages are. `before`: messages and bytes of the
    publishes that wait ahead of it."""
    assert session.principal is not None
    intake = session.hub.intake
    try:
        queue = session.hub.desk.publish_to(session.principal, head.queue)
    except PushqError:
        return  # refused for another reason: the whole frame is decoded, and gets its answer
    if intake.publishes:
        intake.check_publish(queue.config)
    full = queue.why_full(before[0] + 1, before[1] + 1)
    if full is not None:
        raise intake.refusal("publish", "line", full.detail)


def _store(
    session: Session, frame: Any, queue: Target, prepared: Prepared, held: Held, messages: int, until_ms: int
) -> None:
    asked = PendingRequest(session, "publish", frame.queue, messages=messages, bytes_in=held[2], frame=frame)
    done = partial(_published, asked, frame.id, queue.config, prepared, held)
    if prepared.claim is None:
        asked.run(queue.publish, prepared.blocks, done, until_ms=until_ms)
    else:
        asked.run(session.hub.desk.publish_once, queue, msgspec.structs.replace(prepared, until_ms=until_ms), done)


def _over_rate(session: Session, operation: str, frame: Any, held: Held, error: PushqError) -> None:
    room, tenant, size = held
    room.give(tenant, size)
    if (spans := session.hub.spans) is not None:
        spans.refused(operation, frame, session.who.tenant, error.code)
    session.refuse_publish(frame.id, error)


def _prepared(session: Session, frame: Any, queue: Target, messages: Any, *, plain: bool) -> Prepared:
    """Checks and encodes a publish. Only the full frame has a trace."""
    desk, key_of = session.hub.desk, None
    if frame.idempotency_key is not None:
        assert session.principal is not None
        key_of = KeyOf(session.principal.id, checked_idempotency_key(frame.idempotency_key))
    if plain:
        return desk.prepare_plain(queue, messages, session.encoding, key_of=key_of)
    trace = checked_trace(frame.traceparent, frame.tracestate)
    return desk.prepare(queue, messages, session.encoding, trace, key_of)


def _made(session: Session, frame: Any, messages: Any, plain: bool, came: float, task: asyncio.Task[None]) -> None:
    """Continues a publish once the queue that it creates exists, or refuses it."""
    session.ended()
    if task.cancelled():
        return
    error = task.exception()
    if session.closed:
        return
    if isinstance(error, PushqError):
        session.error(frame.id, error)
    elif error is not None:
        log.error("a publish could not create its queue", queue=frame.queue, exc_info=error)
        session.error(frame.id, PushqError("internal error; see the log"))
    else:
        again = partial(session.answering, frame.id, publish, session, frame, messages, plain=plain, came=came)
        if session.gate.held is not None:
            session.gate.held.append(again)  # frames after it wait for their limits already: it waits behind them
        else:
            again()


def _published(
    asked: PendingRequest,
    request_id: RequestId,
    config: QueueConfig,
    prepared: Prepared,
    held: Held,
    result: Published | PushqError,
) -> None:
    session = asked.session
    room, tenant, size = held
    room.give(tenant, size)
    error = result if isinstance(result, PushqError) else refusal(result)
    asked.ended(error)
    if isinstance(error, Overloaded):
        session.hub.intake.met_end()
    if error is not None:
        session.error(request_id, error)
    elif request_id is not None:
        assert isinstance(result, Published)
        session.reply(published_ok(request_id, result, prepared, config, session.encoding))


def ack(session: Session, frame: Ack) -> None:
    queue = _consumed(session, frame.queue, frame.receipts)
    if frame.publish:
        _ack_and_publish(session, frame, queue, frame.publish)
        return
    if frame.id is None:
        queue.settle_quietly(frame.receipts)
        session.count("ack", frame.queue, messages=len(frame.receipts))
        if (spans := session.hub.spans) is not None:
            spans.asked("ack", frame.queue, session.who.tenant, messages=len(frame.receipts))
        return
    asked = PendingRequest(session, "ack", frame.queue, messages=len(frame.receipts))
    asked.run(queue.settle, frame.receipts, partial(_judged, asked, frame.id, frame.receipts))


def _ack_and_publish(session: Session, frame: Ack, queue: Queue, publishes: list[AckPublish]) -> None:
    assert session.principal is not None
    made = outputs(session.hub, session.principal, queue, frame.receipts, publishes, session.encoding)
    held = _held(session, sum(one.prepared.size for one in made))
    verdict = session.hub.throttle.publish(session.who, [(one.queue.name, one.prepared.blocks) for one in made])
    settle = partial(_settle_and_publish, session, frame, queue, made, held)
    session.gate.enter(verdict, settle, partial(_over_rate, session, "ack", frame, held))


def _settle_and_publish(session: Session, frame: Ack, queue: Queue, made: list[Output], held: Held) -> None:
    asked = PendingRequest(session, "ack", frame.queue, messages=len(frame.receipts))
    room, tenant, size = held

    def decided(result: SettledAndPublished | PushqError) -> None:
        room.give(tenant, size)
        asked.ended(result if isinstance(result, PushqError) else None)
        if isinstance(result, PushqError):
            session.error(frame.id, result)
        else:
            rows = results(frame.receipts, result.verdicts)
            session.ok(frame.id, results=rows, published=published_rows(made, result))

    blocks = [(one.queue, one.prepared.blocks) for one in made]
    asked.run(queue.settle_and_publish, frame.receipts, blocks, decided)


def nack(session: Session, frame: Nack) -> None:
    queue = _consumed(session, frame.queue, frame.receipts)
    check_delay(frame.delay_ms)
    reason = checked_reason(frame.reason)
    asked = PendingRequest(session, "nack", frame.queue, messages=len(frame.receipts))
    judged = partial(_judged, asked, frame.id, frame.receipts)
    asked.run(queue.give_back, frame.receipts, frame.delay_ms, judged, reason, tried=frame.tried)


def extend(session: Session, frame: Extend) -> None:
    queue = _consumed(session, frame.queue, frame.receipts)
    visibility_ms = checked_visibility(frame.visibility_timeout_ms)
    session.vouched(frame.receipts)
    asked = PendingRequest(session, "extend", frame.queue, messages=len(frame.receipts))
    queue.extend(frame.receipts, visibility_ms, partial(_judged, asked, frame.id, frame.receipts))


def _consumed(session: Session, name: str, receipts: list[str]) -> Queue:
    assert session.principal is not None
    queue = session.hub.desk.queue(session.principal, name, "consume")
    _check_count(receipts)
    return queue


def _check_count(receipts: list[str]) -> None:
    if len(receipts) > RECEIPTS_PER_REQUEST_MAX:
        raise field("/receipts", f"receipts must have at most {RECEIPTS_PER_REQUEST_MAX} entries, not {len(receipts)}")


def _judged(
    asked: PendingRequest, request_id: RequestId, receipts: list[str], verdicts: list[Verdict] | PushqError
) -> None:
    session = asked.session
    asked.ended(verdicts if isinstance(verdicts, PushqError) else None)
    if isinstance(verdicts, PushqError):
        session.error(request_id, verdicts)
    elif request_id is not None:
        session.ok(request_id, results=results(receipts, verdicts))


def subscribe(session: Session, frame: Subscribe) -> None:
    assert session.principal is not None
    queue = session.hub.desk.queue(session.principal, frame.queue, "consume")
    if len(session.subs) + session.opening >= SUBSCRIPTIONS_PER_SESSION_MAX:
        raise InvalidRequest(f"this session has reached the limit of {SUBSCRIPTIONS_PER_SESSION_MAX} subscriptions")
    if session.hub.draining:
        raise PushqError("the server is shutting down", code="draining")
    session.hub.intake.check_subscribe()
    is_reader = frame.group is None and queue.config.kind == "stream"
    if is_reader and frame.visibility_timeout_ms is not None:
        raise field("/visibility_timeout_ms", "a stream without a group has no leases")
    start = stream_start(queue, frame.from_) if is_reader else None  # may raise `LookingUp`, so it comes first
    verdict = session.hub.throttle.operation(session.who, "receive", frame.queue)
    session.gate.enter(verdict, partial(_counted, session, frame, queue, start), partial(session.refuse, frame.id))


def _counted(session: Session, frame: Subscribe, queue: Queue, start: Start | None) -> None:
    """Opens a subscription and counts it until its end; a refused one is not counted."""
    try:
        session.hub.throttle.enter("subscriptions", session.who)
        try:
            _subscribe(session, frame, queue, start)
        except PushqError:
            session.leave("subscriptions")
            raise
    except PushqError as error:
        session.refuse(frame.id, error)


def _subscribe(session: Session, frame: Subscribe, queue: Queue, start: Start | None) -> None:
    if frame.group is not None:
        _subscribe_group(session, frame, queue, frame.group)
    elif start is not None:
        _subscribe_stream(session, frame, queue, start)
    elif frame.from_ is not None:
        raise field("/from", "`from` is only for streams; a work queue has no positions")
    else:
        _subscribe_work(session, frame, queue)


def _subscribe_group(session: Session, frame: Subscribe, stream: Queue, name: str) -> None:
    """Subscribes to a group. `from` says where a new group begins; an existing group goes on at its offsets."""
    check_has_groups(stream)
    checked_group(name)
    wanted = checked_start(frame.from_)
    checked_credit(frame.credit if frame.credit is not None else CREDIT_DEFAULT)
    if frame.visibility_timeout_ms is not None:
        checked_visibility(frame.visibility_timeout_ms)
    session.began()
    session.opening += 1
    open_group(stream, name, wanted, partial(_group_opened, session, frame))


def _group_opened(session: Session, frame: Subscribe, group: GroupQueue | PushqError) -> None:
    session.ended()
    session.opening -= 1
    if not isinstance(group, PushqError) and not session.closed:
        _subscribe_work(session, frame, group)
        return
    session.leave("subscriptions")
    if isinstance(group, PushqError):
        session.error(frame.id, group)


def _subscribe_work(session: Session, frame: Subscribe, queue: Queue) -> None:
    credit = checked_credit(frame.credit if frame.credit is not None else CREDIT_DEFAULT)
    visibility_ms = visibility_of(queue, frame.visibility_timeout_ms)
    number = session.number()
    sub = WorkSubscription(
        session,
        number,
        queue,
        session.hub.feeder(queue),
        credit=credit,
        auto=frame.ack == "auto",
        visibility_ms=visibility_ms,
        pending_bytes_max=OUTBOX_BYTES_SOFT_MAX,
        tells_begun=frame.attempts == "begun",
    )
    session.subs[number] = sub
    session.hub.readers.enter(session, queue)
    queue.consumers += 1
    lost = session.hub.hand_over(session, sub)
    facts: dict[str, Any] = {"mode": queue.mode} if queue.mode is not None else {}
    if queue.config.ordering == "strict":
        facts["ordering"] = "strict"  # so that a client hands on messages of one key one by one
    if queue.config.retry_backoff_ms:
        facts["retry_backoff_ms"] = queue.config.retry_backoff_ms  # so that a client need have none of its own
    gaps = queue.take_gaps()
    outcome = "gap" if gaps else "complete"
    session.ok(frame.id, sub=number, resume=outcome, visibility_timeout_ms=visibility_ms, **facts)
    for gap in gaps:
        session.send({"type": "gap", "sub": number, **gap_fields(gap)})
    if gaps:
        sub.missed(gaps, session.hearing.heard)
    if lost:
        session.tell_lost(number, lost)
    sub.grant(credit)


def _subscribe_stream(session: Session, frame: Subscribe, queue: Queue, start: Start) -> None:
    credit = checked_credit(frame.credit) if frame.credit is not None else None
    number = session.number()
    key = "json" if session.encoding == "json" else "msgpack"
    sub = StreamSubscription(session, number, queue, start=start, credit=credit, key=key)
    session.subs[number] = sub
    session.hub.readers.enter(session, queue)
    queue.consumers += 1
    # With the cursor, a client that is cut before its first message can resume from here.
    session.ok(frame.id, sub=number, resume=start.outcome, cursor=start.cursor)
    for gap in start.gaps:
        session.send({"type": "gap", "sub": number, **gap_fields(gap)})
    if start.outcome == "reset":
        session.tell_reset(number, start.cursor)
    session.flush()  # where others replay, its first messages may be written before this turn's answers
    session.fanout(queue).start(sub, session)


def begin(session: Session, frame: Begin) -> None:
    sub = _subscription(session, frame.sub)
    _check_count(frame.receipts)
    if isinstance(sub, WorkSubscription):
        sub.begun(by_token(frame.receipts))
    session.ok(frame.id)


def unsubscribe(session: Session, frame: Unsubscribe) -> None:
    """Ends a subscription. `ok` is sent once its messages are back: a client that has read it finds them ready."""
    sub = _subscription(session, frame.sub)
    held = sub.one_of_each_lease() if isinstance(sub, WorkSubscription) else []
    session.drop(sub)
    if not held:
        session.ok(frame.id)
        return
    session.began()
    # These leases have ended already, so this changes nothing; but its answer comes after the commit that takes them
    # back.
    sub.queue.give_back(held, None, partial(_taken_back, session, frame.id), tried=False)


def _taken_back(session: Session, request_id: RequestId, verdicts: list[Verdict] | PushqError) -> None:
    """Answers `ok` whatever the verdicts are: the subscription has ended in any case."""
    session.ended()
    session.ok(request_id)


def allow(session: Session, frame: Credit) -> None:
    sub = _subscription(session, frame.sub)
    more = checked_credit(frame.n, pointer="/n")
    if isinstance(sub, WorkSubscription):
        sub.grant(min(CREDIT_MAX, sub.credit + more))
    else:
        session.fanout(sub.queue).allow(sub, more, session)
    session.ok(frame.id)


def _subscription(session: Session, number: int) -> Subscription:
    sub = session.subs.get(number)
    if sub is None:
        raise field("/sub", f"unknown subscription {number}")
    return sub


def ping(session: Session, frame: Ping) -> None:
    if not session.pinged():
        return
    session.send({"type": "pong"} if frame.id is None else {"type": "pong", "id": frame.id})


def pong(session: Session, frame: Pong) -> None:
    """Heard: any frame shows that the peer is alive."""
    session.pinged()


def connect_again(session: Session, frame: Connect) -> None:
    raise InvalidRequest("this session is already connected; renew its token with `refresh`")


HANDLERS: dict[type[Any], Callable[..., None]] = {
    Connect: connect_again,
    Subscribe: subscribe,
    Begin: begin,
    Unsubscribe: unsubscribe,
    Credit: allow,
    Ack: ack,
    Nack: nack,
    Extend: extend,
    Refresh: refresh,
    Ping: ping,
    Pong: pong,
}
"""The handler of every frame but `publish`, which has a faster path."""

_FRAMES: tuple[type[Any], ...] = (Publish, *HANDLERS)
KINDS: dict[str, type[Any]] = {kind.__struct_config__.tag: kind for kind in _FRAMES}
"""Frame types by the value of their `type`."""
