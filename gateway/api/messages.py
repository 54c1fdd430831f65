"""Messages in and out over HTTP: publish, receive, ack, nack, extend. The hot path of the API."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from backend_store.client import Queue, SettledAndPublished
from backend_store.model import InvalidRequest, Published, PushqError, QueueNotFound, Verdict
from gateway.api import cloudevents
from gateway.api.shapes import AckRequest, ExtendBody, NackBody, PlainPublishBody, PublishBody, ReceiveBody
from gateway.context import Gateway
from gateway.http import Answer, Call, ClientGone, decode, json_answer
from push.checks import check_delay, checked_reason, checked_visibility, results
from push.checks import field as invalid_field
from push.joint import outputs, published_rows
from push.ports import Prepared, Target
from push.protocol import RECEIPTS_PER_REQUEST_MAX
from push.published import published_messages_json, queue_words, refusal
from push.transports import longpoll

VerdictsReply = Callable[[list[Verdict] | PushqError], None]

_decode_plain: Final = msgspec.json.Decoder(PlainPublishBody).decode

_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_PUBLISHED = b'{"messages":%b,"durability":{"fsynced":%b,"replicas":%d},%b}'
_DRAINING: Final = "the server is shutting down"


# ----------------------------------------------------------------------------------------------------- publish


async def publish(gateway: Gateway, call: Call) -> Answer:
    try:
        queue = gateway.desk.publish_to(call.principal, call.params[0])
    except QueueNotFound:
        queue = await _made(gateway, call)
    if gateway.hub.draining:
        raise PushqError(_DRAINING, code="draining")
    call.query()
    body = await call.body()
    prepared = _prepared(gateway, queue, call, body)
    published = await _stored(queue, prepared)
    if (error := refusal(published)) is not None:
        raise error
    messages = published_messages_json(published, prepared)
    words = queue_words(queue.config.sequencing, queue.config.dedupe, "json")
    fsynced = b"true" if published.fsynced else b"false"
    return Answer(201, _PUBLISHED % (messages, fsynced, published.replicas, words))


async def _made(gateway: Gateway, call: Call) -> Target:
    """A queue that was not there, made now where the settings say that a publish makes it. Raises `QueueNotFound`."""
    name = call.params[0]
    made = gateway.desk.made_by_publish(call.principal, name)
    if made is not None:
        await made
    return gateway.desk.publish_to(call.principal, name)


def _prepared(gateway: Gateway, queue: Target, call: Call, body: bytes) -> Prepared:
    """The request's messages as blocks: an envelope of messages, or one message that is the body itself."""
    headers, desk = call.headers, gateway.desk
    content_type = headers.get(b"content-type", b"application/json")
    trace = _trace(headers)
    if b"ce-specversion" in headers or b"cloudevents" in content_type:
        return desk.prepare(queue, cloudevents.messages(headers, call.content_type, body), "json", trace)
    if content_type != b"application/json" and call.content_type != "application/json":
        return desk.prepare(queue, [cloudevents.raw_message(headers, body)], "json", trace)
    if not body.isascii():
        _check_utf8(body)
    try:
        plain = _decode_plain(body)
    except (msgspec.MsgspecError, RecursionError):
        # Not only bodies, or wrong: the full decoder takes the one and explains the other.
        return desk.prepare(queue, decode(body, PublishBody).messages, "json", trace)
    return desk.prepare_plain(queue, [message.body for message in plain.messages], "json", trace)


def _trace(headers: dict[bytes, bytes]) -> str | None:
    """The caller's W3C trace context, kept with its messages; what is not one is left out, as the standard asks."""
    stated = headers.get(b"traceparent")
    return stated.decode() if stated is not None and _TRACEPARENT.fullmatch(stated) else None


def _check_utf8(body: bytes) -> None:
    """The decoder leaves bodies as they are, so it would let broken text through to every consumer."""
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the body is not UTF-8: byte {error.start} is {error.object[error.start]:#04x}") from None


def _stored(queue: Target, prepared: Prepared) -> asyncio.Future[Published]:
    """Resolves when the blocks are durable. Raises what kept them out."""
    done: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
    queue.publish(prepared.blocks, partial(_resolve, done))
    return done


def _resolve(done: asyncio.Future[Any], result: Any) -> None:
    if done.done():
        return  # the client left, and its request was cancelled
    if isinstance(result, PushqError):
        done.set_exception(result)
    else:
        done.set_result(result)


# ----------------------------------------------------------------------------------------------------- receive


async def receive(gateway: Gateway, call: Call) -> Answer:
    queue = gateway.desk.queue(call.principal, call.params[0], "consume")
    wanted: ReceiveBody = await call.fields(ReceiveBody)
    body = await longpoll.receive(
        gateway.hub,
        queue,
        limit=wanted.max,
        wait_ms=wanted.wait_ms,
        visibility_timeout_ms=wanted.visibility_timeout_ms,
        from_=wanted.from_,
        receive=call.receive,
        group=wanted.group,
    )
    if body is None:
        raise ClientGone
    return Answer(200, body)


# ---------------------------------------------------------------------------------------------------- receipts


async def ack(gateway: Gateway, call: Call) -> Answer:
    queue = gateway.desk.queue(call.principal, call.params[0], "consume")
    wanted: AckRequest = await call.fields(AckRequest)
    if wanted.publish:
        return await _ack_and_publish(gateway, call, queue, wanted)
    return await _judged(queue, wanted.receipts, queue.settle)


async def _ack_and_publish(gateway: Gateway, call: Call, queue: Queue, wanted: AckRequest) -> Answer:
    _check_receipts(wanted.receipts)
    if gateway.hub.draining:
        raise PushqError(_DRAINING, code="draining")
    made = outputs(gateway.desk, call.principal, queue, wanted.receipts, wanted.publish or [], "json")
    done: asyncio.Future[SettledAndPublished] = asyncio.get_running_loop().create_future()
    publishes = [(one.queue, one.prepared.blocks) for one in made]
    queue.settle_and_publish(wanted.receipts, publishes, partial(_resolve, done))
    result = await done
    rows = results(wanted.receipts, result.verdicts)
    return json_answer({"results": rows, "published": published_rows(made, result)})


async def nack(gateway: Gateway, call: Call) -> Answer:
    queue = gateway.desk.queue(call.principal, call.params[0], "consume")
    wanted: NackBody = await call.fields(NackBody)
    check_delay(wanted.delay_ms)
    reason = checked_reason(wanted.reason)
    give_back = partial(queue.give_back, reason=reason, tried=wanted.tried)
    return await _judged(queue, wanted.receipts, lambda receipts, reply: give_back(receipts, wanted.delay_ms, reply))


async def extend(gateway: Gateway, call: Call) -> Answer:
    queue = gateway.desk.queue(call.principal, call.params[0], "consume")
    wanted: ExtendBody = await call.fields(ExtendBody)
    visibility_ms = checked_visibility(wanted.visibility_timeout_ms)
    return await _judged(queue, wanted.receipts, lambda receipts, reply: queue.extend(receipts, visibility_ms, reply))


def _check_receipts(receipts: list[str]) -> None:
    if len(receipts) > RECEIPTS_PER_REQUEST_MAX:
        detail = f"{len(receipts)} receipts; a request takes {RECEIPTS_PER_REQUEST_MAX}"
        raise invalid_field("/receipts", detail)


async def _judged(queue: Queue, receipts: list[str], ask: Callable[[list[str], VerdictsReply], None]) -> Answer:
    """One row a receipt, in their order, once it is durable."""
    _check_receipts(receipts)
    done: asyncio.Future[list[Verdict]] = asyncio.get_running_loop().create_future()
    ask(receipts, partial(_resolve, done))
    return json_answer({"results": results(receipts, await done)})
