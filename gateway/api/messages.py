"""HTTP handlers for messages: publish, receive, ack, nack, extend. The hot path of the API."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec
from starlette.types import Receive

from backend_store.client import Queue, SettledAndPublished
from backend_store.model import InvalidRequest, Published, PushqError, QueueNotFound, Verdict
from gateway.api import cloudevents
from gateway.api.http import Answer, Call, ClientGone, decode, json_answer
from gateway.api.shapes.bodies import AckRequest, ExtendBody, NackBody, PlainPublishBody, PublishBody, ReceiveBody
from gateway.api.timeouts import stated_ms
from gateway.context import Gateway
from gateway.limits import RECEIVE_MESSAGES_DEFAULT
from gateway.publishing.idempotency_keys import HEADER, REPLAYED, key_of_headers
from gateway.publishing.idempotent_publish import is_replay
from push.encoding.message_count import check_messages
from push.encoding.publish_reply import published_messages_json, queue_words, refusal
from push.operations.checks import check_delay, checked_reason, checked_visibility, results
from push.operations.checks import field as invalid_field
from push.operations.publish_gate import check_publish
from push.operations.transaction import outputs, published_rows
from push.ports import KeyOf, Prepared, Target
from push.protocol import RECEIPTS_PER_REQUEST_MAX
from push.traces import kept_trace
from push.transports import longpoll

VerdictsReply = Callable[[list[Verdict] | PushqError], None]

_decode_plain: Final = msgspec.json.Decoder(PlainPublishBody).decode

_PUBLISHED = b'{"messages":%b,"durability":{"fsynced":%b,"replicas":%d},%b}'


# ----------------------------------------------------------------------------------------------------- publish


async def publish(gateway: Gateway, call: Call) -> Answer:
    try:
        queue = gateway.desk.publish_to(call.principal, call.params[0])
    except QueueNotFound:
        queue = await _made(gateway, call)
    check_publish(gateway.hub, queue.config)
    call.query()
    stated_ms(call.headers)
    until_ms = gateway.hub.until_ms(call.until)
    body = await call.body()
    prepared = _prepared(gateway, queue, call, body)
    await call.account.publish(((call.params[0], prepared.blocks),))
    published = await _stored(gateway, queue, prepared, until_ms)
    call.messages = published.count
    if (error := refusal(published)) is not None:
        raise error
    messages = published_messages_json(published, prepared)
    words = queue_words(queue.config.sequencing, queue.config.dedupe, "json")
    fsynced = b"true" if published.fsynced else b"false"
    replayed = (REPLAYED,) if prepared.claim is not None and is_replay(published) else ()
    return Answer(201, _PUBLISHED % (messages, fsynced, published.replicas, words), replayed)


async def _made(gateway: Gateway, call: Call) -> Target:
    """Creates the queue of a publish if `queues.auto_create` says so, and returns it. Raises `QueueNotFound`."""
    name = call.params[0]
    made = gateway.desk.made_by_publish(call.principal, name, call.until)
    if made is not None:
        await made
    return gateway.desk.publish_to(call.principal, name)


def _prepared(gateway: Gateway, queue: Target, call: Call, body: bytes) -> Prepared:
    """Encodes the request's messages into blocks: CloudEvents, an envelope of messages, or one message that is the
    body itself."""
    headers, desk = call.headers, gateway.desk
    content_type = headers.get(b"content-type", b"application/json")
    trace = _trace(headers)
    key_of = KeyOf(call.principal.id, key_of_headers(call.scope["headers"])) if HEADER in headers else None
    is_usual = content_type == b"application/json"
    if b"ce-specversion" in headers or (not is_usual and b"cloudevents" in content_type):
        return desk.prepare(queue, cloudevents.messages(headers, call.content_type, body), "json", trace, key_of)
    if not is_usual and call.content_type != "application/json":
        cloudevents.check_form(call.content_type, body)
        return desk.prepare(queue, [cloudevents.raw_message(headers, body)], "json", trace, key_of)
    if not body.isascii():
        _check_utf8(body)
    check_messages(body, "json")
    try:
        plain = _decode_plain(body)
    except (msgspec.MsgspecError, RecursionError):
        # Messages with other fields, or invalid ones: the full decoder takes the former and explains the latter.
        return desk.prepare(queue, decode(body, PublishBody).messages, "json", trace, key_of)
    return desk.prepare_plain(queue, [message.body for message in plain.messages], "json", trace, key_of)


def _trace(headers: dict[bytes, bytes]) -> str | None:
    """The W3C trace context of the messages; an invalid one is ignored, as the standard demands.

    A CloudEvent's own context, made with the event, takes precedence over that of the request.
    """
    prefix = b"ce-" if b"ce-traceparent" in headers else b""
    stated, state = headers.get(prefix + b"traceparent"), headers.get(prefix + b"tracestate")
    if stated is None:
        return None
    return kept_trace(stated.decode("latin-1"), None if state is None else state.decode("latin-1"))


def _check_utf8(body: bytes) -> None:
    """Raises `InvalidRequest` for invalid UTF-8: the decoder keeps bodies raw, so it would pass broken text on to
    consumers."""
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"the body is not valid UTF-8: byte {error.start} is {error.object[error.start]:#04x}"
        ) from None


def _stored(gateway: Gateway, queue: Target, prepared: Prepared, until_ms: int) -> asyncio.Future[Published]:
    """Publishes the blocks. The future resolves when they are durable, or raises the error that refuses them."""
    done: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
    if prepared.claim is not None:
        timed = msgspec.structs.replace(prepared, until_ms=until_ms)
        gateway.desk.publish_once(queue, timed, partial(_resolve, done))
    else:
        queue.publish(prepared.blocks, partial(_resolve, done), until_ms=until_ms)
    return done


def _resolve(done: asyncio.Future[Any], result: Any) -> None:
    if done.done():
        return  # the client disconnected, and its request was cancelled
    if isinstance(result, PushqError):
        done.set_exception(result)
    else:
        done.set_result(result)


# ----------------------------------------------------------------------------------------------------- receive


async def receive(gateway: Gateway, call: Call) -> Answer:
    queue = gateway.desk.queue(call.principal, call.params[0], "consume")
    wanted: ReceiveBody = await call.fields(ReceiveBody)
    stated_ms(call.headers)
    call.waits_longer(wanted.wait_ms or 0)
    if not wanted.wait_ms:
        return await _received(gateway, call, queue, wanted, call.receive)
    with (
        gateway.throttle.holding("connections", call.account.who),
        gateway.hub.open.waiting(call.principal, call.address, queue, call.receive) as poll,
    ):
        try:
            return await _received(gateway, call, queue, wanted, poll.receive)
        except ClientGone:
            raise poll.ended_by or ClientGone


async def _received(gateway: Gateway, call: Call, queue: Queue, wanted: ReceiveBody, receive: Receive) -> Answer:
    body = await longpoll.receive(
        gateway.hub,
        queue,
        limit=RECEIVE_MESSAGES_DEFAULT if wanted.max is None else wanted.max,
        wait_ms=wanted.wait_ms or 0,
        visibility_timeout_ms=wanted.visibility_timeout_ms,
        from_=wanted.from_,
        receive=receive,
        group=wanted.group,
        told=call.count,
        asker=(call.principal, call.address),
    )
    if body is None:
        raise ClientGone
    return Answer(200, body)


# ---------------------------------------------------------------------------------------------------- receipts


async def ack(gateway: Gateway, call: Call) -> Answer:
    queue = gateway.desk.queue(call.principal, call.params[0], "consume")
    body = await call.json_bytes()
    check_messages(body, "json")
    wanted: AckRequest = decode(body, AckRequest)
    call.messages = len(wanted.receipts)
    if wanted.publish:
        return await _ack_and_publish(gateway, call, queue, wanted)
    return await _judged(queue, wanted.receipts, queue.settle)


async def _ack_and_publish(gateway: Gateway, call: Call, queue: Queue, wanted: AckRequest) -> Answer:
    _check_receipts(wanted.receipts)
    made = outputs(gateway.hub, call.principal, queue, wanted.receipts, wanted.publish or [], "json")
    done: asyncio.Future[SettledAndPublished] = asyncio.get_running_loop().create_future()
    await call.account.publish([(one.queue.name, one.prepared.blocks) for one in made])
    publishes = [(one.queue, one.prepared.blocks) for one in made]
    queue.settle_and_publish(wanted.receipts, publishes, partial(_resolve, done))
    result = await done
    rows = results(wanted.receipts, result.verdicts)
    return json_answer({"results": rows, "published": published_rows(made, result)})


async def nack(gateway: Gateway, call: Call) -> Answer:
    queue = gateway.desk.queue(call.principal, call.params[0], "consume")
    wanted: NackBody = await call.fields(NackBody)
    call.messages = len(wanted.receipts)
    check_delay(wanted.delay_ms)
    reason = checked_reason(wanted.reason)
    give_back = partial(queue.give_back, reason=reason, tried=wanted.tried)
    return await _judged(queue, wanted.receipts, lambda receipts, reply: give_back(receipts, wanted.delay_ms, reply))


async def extend(gateway: Gateway, call: Call) -> Answer:
    queue = gateway.desk.queue(call.principal, call.params[0], "consume")
    wanted: ExtendBody = await call.fields(ExtendBody)
    call.messages = len(wanted.receipts)
    visibility_ms = checked_visibility(wanted.visibility_timeout_ms)
    return await _judged(queue, wanted.receipts, lambda receipts, reply: queue.extend(receipts, visibility_ms, reply))


def _check_receipts(receipts: list[str]) -> None:
    if len(receipts) > RECEIPTS_PER_REQUEST_MAX:
        detail = f"receipts must have at most {RECEIPTS_PER_REQUEST_MAX} entries, not {len(receipts)}"
        raise invalid_field("/receipts", detail)


async def _judged(queue: Queue, receipts: list[str], ask: Callable[[list[str], VerdictsReply], None]) -> Answer:
    """The answer with one row per receipt, in their order, once the decisions are durable."""
    _check_receipts(receipts)
    done: asyncio.Future[list[Verdict]] = asyncio.get_running_loop().create_future()
    ask(receipts, partial(_resolve, done))
    return json_answer({"results": results(receipts, await done)})
