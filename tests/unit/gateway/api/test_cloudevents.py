"""CloudEvents become messages in all three modes; what is none is told why."""

from __future__ import annotations

from base64 import b64decode

import pytest

from backend_store.model import InvalidRequest, PushqError
from gateway.api import cloudevents

BINARY = {
    b"ce-specversion": b"1.0", b"ce-id": b"e1", b"ce-source": b"/shop", b"ce-type": b"order.made",
    b"content-type": b"application/json; charset=utf-8",
}  # fmt: skip
EVENT = b'{"specversion":"1.0","id":"e1","source":"/shop","type":"t","data":{"a":1}}'


def binary(body: bytes, **more: bytes) -> dict[bytes, bytes]:
    return BINARY | {name.replace("_", "-").encode(): value for name, value in more.items()}


def test_a_binary_event_keeps_its_data_as_body_and_its_attributes_as_headers() -> None:
    headers = binary(b"", ce_partitionkey=b"k1", ce_subject=b"Euro %E2%82%AC%20%22x%22", x_other=b"no")
    (message,) = cloudevents.messages(headers, "application/json", b'{"a": 1}')
    assert bytes(message.body) == b'{"a": 1}'
    assert (message.id, message.key, message.content_type) == ("e1", "k1", "application/json; charset=utf-8")
    assert message.headers == {
        "ce-specversion": "1.0", "ce-id": "e1", "ce-source": "/shop", "ce-type": "order.made", "ce-partitionkey": "k1",
        "ce-subject": 'Euro € "x"',
    }  # fmt: skip


@pytest.mark.parametrize(
    ("content_type", "body"),
    [(b"text/plain", b"hello"), (b"application/json", b"{broken"), (b"application/json", b"\xff")],
)
def test_data_that_is_not_json_stays_as_it_is(content_type: bytes, body: bytes) -> None:
    (message,) = cloudevents.messages(binary(body, content_type=content_type), "", body)
    assert message.body_base64 is not None and b64decode(message.body_base64) == body


def test_a_structured_event_is_kept_whole() -> None:
    (message,) = cloudevents.messages({}, cloudevents.STRUCTURED, EVENT)
    assert bytes(message.body) == EVENT
    assert (message.id, message.content_type) == ("e1", cloudevents.STRUCTURED)


def test_a_batch_is_a_message_each() -> None:
    other = EVENT.replace(b"e1", b"e2")
    messages = cloudevents.messages({}, cloudevents.BATCH, b"[" + EVENT + b"," + other + b"]")
    assert [(m.id, bytes(m.body)) for m in messages] == [("e1", EVENT), ("e2", other)]


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        (EVENT.replace(b'"1.0"', b'"0.3"'), "/specversion"),
        (EVENT.replace(b'"id":"e1",', b""), "/id"),
        (EVENT.replace(b'"e1"', b"7"), "/id"),
        (EVENT.replace(b'"/shop"', b'""'), "/source"),
        (EVENT.replace(b'"data"', b'"partitionkey":1,"data"'), "/partitionkey"),
    ],
)
def test_an_event_without_its_attributes_is_refused_at_its_place(body: bytes, pointer: str) -> None:
    with pytest.raises(InvalidRequest) as one:
        cloudevents.messages({}, cloudevents.STRUCTURED, body)
    with pytest.raises(InvalidRequest) as many:
        cloudevents.messages({}, cloudevents.BATCH, b"[" + EVENT + b"," + body + b"]")
    assert (one.value.errors[0].pointer, many.value.errors[0].pointer) == (pointer, "/1" + pointer)


def test_a_binary_event_without_its_attributes_names_the_header() -> None:
    with pytest.raises(InvalidRequest) as refused:
        cloudevents.messages({b"ce-specversion": b"1.0", b"ce-id": b"1"}, "", b"")
    assert refused.value.errors[0].pointer == "/headers/ce-source"


@pytest.mark.parametrize("body", [b"", b"[]", b"1", b"{"])
def test_what_is_no_object_is_no_event(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        cloudevents.messages({}, cloudevents.STRUCTURED, body)


def test_another_format_is_refused_as_a_media_type() -> None:
    with pytest.raises(PushqError) as refused:
        cloudevents.messages({}, "application/cloudevents+avro", b"")
    assert refused.value.code == "unsupported-media-type"


def test_any_body_can_be_one_message() -> None:
    message = cloudevents.raw_message({b"content-type": b"image/png"}, b"\x00\xff")
    assert message.body_base64 is not None and b64decode(message.body_base64) == b"\x00\xff"
    assert message.content_type == "image/png"
