"""What a client may ask on its socket, one function a frame: publish, settle, subscribe.

Each checks, asks the store, and returns; the answer goes out when the store calls back. What is refused is raised, and
the session tells it under the request's id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from backend_store.client import GroupQueue, Queue, SettledAndPublished, open_group
from backend_store.model import (
    InvalidRequest,
    Published,
    PushqError,
    QueueConfig,
    QueueNotFound,
    Unauthenticated,
    Verdict,
)
from push.checks import (
    check_delay,
    check_has_groups,
    checked_credit,
    checked_group,
    checked_reason,
    checked_visibility,
    field,
    gap_fields,
    results,
)
from push.joint import outputs, published_rows
from push.limits import CREDIT_DEFAULT, CREDIT_MAX, OUTBOX_BYTES_SOFT_MAX, SUBSCRIPTIONS_PER_SESSION_MAX
from push.ports import Prepared
from push.protocol import (
    RECEIPTS_PER_REQUEST_MAX,
    Ack,
    AckPublish,
    Connect,
    Credit,
    Extend,
    Nack,
    Ping,
    Pong,
    Publish,
    Refresh,
    RequestId,
    Subscribe,
    Unsubscribe,
)
from push.published import published_ok, refusal
from push.starts import checked_start, stream_start
from push.subscriptions import StreamSubscription, WorkSubscription

if TYPE_CHECKING:
    from push.session import Session, Subscription


# --------------------------------------------------------------------------------------------------- publish


def publish(session: Session, frame: Any, messages: Any, *, plain: bool = False) -> None:
    desk = session.hub.desk
    assert session.principal is not None
    try:
        queue = desk.publish_to(session.principal, frame.queue)
    except QueueNotFound:
        made = desk.made_by_publish(session.principal, frame.queue)
        if made is None:
            raise
        session.began()
        task = session.hub.loop.create_task(made, name="auto-create")
        task.add_done_callback(partial(_made, session, frame, messages, plain))
        return
    if session.hub.draining:
        raise PushqError("the server is shutting down", code="draining")
    prepare = desk.prepare_plain if plain else desk.prepare
    prepared = prepare(queue, messages, session.encoding)
    session.began()
    queue.publish(prepared.blocks, partial(_published, session, frame.id, queue.config, prepared))


def _made(session: Session, frame: Any, messages: Any, plain: bool, task: asyncio.Task[None]) -> None:
    """The queue that a publish was to make is there, or it is not."""
    session.ended()
    try:
        task.result()
        publish(session, frame, messages, plain=plain)
    except PushqError as error:
        session.error(frame.id, error)


def _published(
    session: Session, request_id: RequestId, config: QueueConfig, prepared: Prepared, result: Published | PushqError
) -> None:
    session.ended()
    error = result if isinstance(result, PushqError) else refusal(result)
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
        return
    session.began()
    queue.settle(frame.receipts, partial(_judged, session, frame.id, frame.receipts))


def _ack_and_publish(session: Session, frame: Ack, queue: Queue, publishes: list[AckPublish]) -> None:
    assert session.principal is not None
    made = outputs(session.hub.desk, session.principal, queue, frame.receipts, publishes, session.encoding)
    session.began()

    def decided(result: SettledAndPublished | PushqError) -> None:
        session.ended()
        if isinstance(result, PushqError):
            session.error(frame.id, result)
        else:
            rows = results(frame.receipts, result.verdicts)
            session.ok(frame.id, results=rows, published=published_rows(made, result))

    queue.settle_and_publish(frame.receipts, [(one.queue, one.prepared.blocks) for one in made], decided)


def nack(session: Session, frame: Nack) -> None:
    queue = _consumed(session, frame.queue, frame.receipts)
    check_delay(frame.delay_ms)
    reason = checked_reason(frame.reason)
    session.began()
    judged = partial(_judged, session, frame.id, frame.receipts)
    queue.give_back(frame.receipts, frame.delay_ms, judged, reason, tried=frame.tried)


def extend(session: Session, frame: Extend) -> None:
    queue = _consumed(session, frame.queue, frame.receipts)
    visibility_ms = checked_visibility(frame.visibility_timeout_ms)
    session.began()
    queue.extend(frame.receipts, visibility_ms, partial(_judged, session, frame.id, frame.receipts))


def _consumed(session: Session, name: str, receipts: list[str]) -> Queue:
    assert session.principal is not None
    queue = session.hub.desk.queue(session.principal, name, "consume")
    if len(receipts) > RECEIPTS_PER_REQUEST_MAX:
        raise field("/receipts", f"{len(receipts)} receipts; a request takes {RECEIPTS_PER_REQUEST_MAX}")
    return queue


def _judged(session: Session, request_id: RequestId, receipts: list[str], verdicts: list[Verdict] | PushqError) -> None:
    session.ended()
    if isinstance(verdicts, PushqError):
        session.error(request_id, verdicts)
    elif request_id is not None:
        session.ok(request_id, results=results(receipts, verdicts))


def subscribe(session: Session, frame: Subscribe) -> None:
    assert session.principal is not None
    queue = session.hub.desk.queue(session.principal, frame.queue, "consume")
    if len(session.subs) >= SUBSCRIPTIONS_PER_SESSION_MAX:
        raise InvalidRequest(f"this session has {SUBSCRIPTIONS_PER_SESSION_MAX} subscriptions, the most there can be")
    if session.hub.draining:
        raise PushqError("the server is shutting down", code="draining")
    if frame.group is not None:
        _subscribe_group(session, frame, queue, frame.group)
    elif queue.config.kind == "stream":
        _subscribe_stream(session, frame, queue)
    elif frame.from_ is not None:
        raise field("/from", "a work queue has no positions: `from` is for streams")
    else:
        _subscribe_work(session, frame, queue)


def _subscribe_group(session: Session, frame: Subscribe, stream: Queue, name: str) -> None:
    """`from` says where a group begins that does not exist yet; one that does goes on where it stands."""
    check_has_groups(stream)
    checked_group(name)
    wanted = checked_start(frame.from_)
    checked_credit(frame.credit if frame.credit is not None else CREDIT_DEFAULT)
    if frame.visibility_timeout_ms is not None:
        checked_visibility(frame.visibility_timeout_ms)
    session.began()
    open_group(stream, name, wanted, partial(_group_opened, session, frame))


def _group_opened(session: Session, frame: Subscribe, group: GroupQueue | PushqError) -> None:
    session.ended()
    if isinstance(group, PushqError):
        session.error(frame.id, group)
    elif not session.closed:
        _subscribe_work(session, frame, group)


def _subscribe_work(session: Session, frame: Subscribe, queue: Queue) -> None:
    credit = checked_credit(frame.credit if frame.credit is not None else CREDIT_DEFAULT)
    visibility_ms = queue.config.visibility_timeout_ms
    if frame.visibility_timeout_ms is not None:
        visibility_ms = checked_visibility(frame.visibility_timeout_ms)
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
    )
    session.subs[number] = sub
    queue.consumers += 1
    session.hub.hand_over(session, sub)
    facts: dict[str, str] = {"mode": queue.mode} if isinstance(queue, GroupQueue) else {}
    if queue.config.ordering == "strict":
        facts["ordering"] = "strict"  # so that a client hands on messages of one key one by one
    gaps = queue.take_gaps()
    outcome = "gap" if gaps else "complete"
    session.ok(frame.id, sub=number, resume=outcome, visibility_timeout_ms=visibility_ms, **facts)
    for gap in gaps:
        session.send({"type": "gap", "sub": number, **gap_fields(gap)})
    sub.grant(credit)


def _subscribe_stream(session: Session, frame: Subscribe, queue: Queue) -> None:
    if frame.visibility_timeout_ms is not None:
        raise field("/visibility_timeout_ms", "a stream without a group has no leases")
    credit = checked_credit(frame.credit) if frame.credit is not None else None
    start = stream_start(queue, frame.from_)
    number = session.number()
    key = "json" if session.encoding == "json" else "msgpack"
    sub = StreamSubscription(session, number, queue, places=start.places, credit=credit, key=key)
    session.subs[number] = sub
    queue.consumers += 1
    # With the cursor a client cut before its first message can still go on from here.
    session.ok(frame.id, sub=number, resume=start.outcome, cursor=start.cursor)
    for gap in start.gaps:
        session.send({"type": "gap", "sub": number, **gap_fields(gap)})
    if start.outcome == "reset":
        session.send({"type": "reset", "sub": number, "cursor": start.cursor})
    session.fanout(queue).start(sub, session)


def unsubscribe(session: Session, frame: Unsubscribe) -> None:
    session.drop(_subscription(session, frame.sub))
    session.ok(frame.id)


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
        raise field("/sub", f"this session has no subscription {number}")
    return sub


def refresh(session: Session, frame: Refresh) -> None:
    assert session.principal is not None
    principal = session.hub.desk.identify(frame.token)
    if principal.tenant != session.principal.tenant:
        raise Unauthenticated("the new token belongs to another tenant")
    session.principal = principal
    session.ok(frame.id)


def ping(session: Session, frame: Ping) -> None:
    session.send({"type": "pong"} if frame.id is None else {"type": "pong", "id": frame.id})


def pong(session: Session, frame: Pong) -> None:
    """Heard: any frame shows that the peer is alive."""


def connect_again(session: Session, frame: Connect) -> None:
    raise InvalidRequest("this session is connected already; `refresh` renews its token")


HANDLERS: dict[type[Any], Callable[..., None]] = {
    Connect: connect_again,
    Subscribe: subscribe,
    Unsubscribe: unsubscribe,
    Credit: allow,
    Ack: ack,
    Nack: nack,
    Extend: extend,
    Refresh: refresh,
    Ping: ping,
    Pong: pong,
}
"""Every frame but `publish`, which has a faster way in."""

_FRAMES: tuple[type[Any], ...] = (Publish, *HANDLERS)
KINDS: dict[str, type[Any]] = {kind.__struct_config__.tag: kind for kind in _FRAMES}
"""Frames by the word in their `type`."""
