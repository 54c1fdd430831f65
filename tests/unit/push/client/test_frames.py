from __future__ import annotations

from typing import Any

import msgspec
import pytest

from push.client.frames import (
    Codec,
    Connect,
    Deliver,
    Ping,
    Publish,
    Resume,
    ServerPing,
    Subscribe,
    UnreadableFrame,
)
from push.client.model import Encoding, Outgoing

ENCODINGS: list[Encoding] = ["json", "msgpack"]


def encode(encoding: Encoding, value: Any) -> bytes:
    return msgspec.json.encode(value) if encoding == "json" else msgspec.msgpack.encode(value)


def decode(encoding: Encoding, data: Any) -> Any:
    return msgspec.json.decode(data) if encoding == "json" else msgspec.msgpack.decode(data)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_only_given_fields_travel(encoding: Encoding) -> None:
    codec = Codec(encoding)
    packed = codec.pack([Subscribe(id=3, queue="q", start={"seq": 4})])
    assert [decode(encoding, data) for data in packed] == [
        {"type": "subscribe", "id": 3, "queue": "q", "from": {"seq": 4}}
    ]
    packed = codec.pack([Connect(id=1, resume=Resume("s"))])
    assert decode(encoding, packed[0]) == {"type": "connect", "id": 1, "resume": {"session": "s"}}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_several_frames_are_one_array_and_one_frame_is_an_object(encoding: Encoding) -> None:
    codec = Codec(encoding)
    assert decode(encoding, codec.pack([Ping(), Ping()])[0]) == [{"type": "ping"}, {"type": "ping"}]
    assert decode(encoding, codec.pack([Ping()])[0]) == {"type": "ping"}
    assert codec.pack([]) == []


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_big_frames_are_not_joined(encoding: Encoding) -> None:
    codec = Codec(encoding)
    big = Publish(id=1, queue="q", messages=[codec.message(Outgoing(body="x" * 700_000))])
    assert len(codec.pack([big, big, Ping()])) == 2


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("body", [None, 0, "", [], {"a": [1, None, "ü"]}, 1.5, True])
def test_a_json_body_travels_as_it_is(encoding: Encoding, body: Any) -> None:
    message = Codec(encoding).message(Outgoing(body=body, id="i", headers={"h": "v"}))
    assert decode(encoding, message) == {"body": body, "id": "i", "headers": {"h": "v"}}


def test_bytes_travel_as_bytes_in_msgpack_and_as_base64_in_json() -> None:
    outgoing = Outgoing(body=b"\x00\xff", id="i")
    assert decode("msgpack", Codec("msgpack").message(outgoing)) == {"body": b"\x00\xff", "id": "i"}
    assert decode("json", Codec("json").message(outgoing)) == {"body_base64": "AP8=", "id": "i"}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_body_that_cannot_be_encoded_is_the_callers_error(encoding: Encoding) -> None:
    with pytest.raises(TypeError):
        Codec(encoding).message(Outgoing(body=object()))


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_fields_and_types_of_later_versions_are_passed_over(encoding: Encoding) -> None:
    codec = Codec(encoding)
    data = encode(encoding, [{"type": "weather", "rain": 1}, {"type": "ping", "since": 3}])
    assert codec.unpack(data) == [ServerPing()]
    assert codec.unpack(encode(encoding, {"type": "weather"})) == []


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_delivery_keeps_every_field_of_its_message(encoding: Encoding) -> None:
    message = {
        "id": "0-1", "seq": 5, "partition": 2, "body": {"x": 1}, "content_type": "application/json",
        "headers": {"a": "b"}, "key": "k", "priority": 1, "attempt": 3, "published_at": "2026-01-02T03:04:05.678Z",
        "receipt": "t.0", "reply_to": "r", "correlation_id": "c", "expires_at": None,
    }  # fmt: skip
    frames = Codec(encoding).unpack(encode(encoding, {"type": "deliver", "sub": 1, "messages": [message]}))
    assert isinstance(frames[0], Deliver)
    found = msgspec.structs.asdict(frames[0].messages[0])
    assert {name: found[name] for name in message} == message


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("value", [None, 3, "x", {}, {"type": "deliver"}, [{"type": "ok"}], [None]])
def test_what_is_no_frame_is_refused(encoding: Encoding, value: Any) -> None:
    with pytest.raises(UnreadableFrame):
        Codec(encoding).unpack(encode(encoding, value))


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_broken_bytes_are_refused(encoding: Encoding) -> None:
    with pytest.raises(UnreadableFrame):
        Codec(encoding).unpack(b"\x82\xa4type")


# Messages that cannot be decoded

PARTS = ",".join(
    f'{{"id":"{id}","seq":{seq},"partition":2,"body":{body},"receipt":"r-{id}"}}'
    for seq, (id, body) in enumerate([("a", "1"), ("b", "[1e999]"), ("c", '{"x":2}'), ("d", "9" * 5000)])
)
HUGE = f'{{"type":"deliver","sub":1,"cursor":"c","messages":[{PARTS}]}}'


@pytest.mark.parametrize("data", [HUGE, HUGE.encode(), f'[{{"type":"weather"}},{HUGE},{{"type":"ping"}}]'.encode()])
def test_a_message_that_cannot_be_decoded_is_set_apart_from_its_neighbours(data: bytes | str) -> None:
    deliver, *others = Codec("json").unpack(data)
    assert isinstance(deliver, Deliver) and (deliver.sub, deliver.cursor) == (1, "c")
    assert [(message.id, message.body) for message in deliver.messages] == [("a", 1), ("c", {"x": 2})]
    unread = [(each.id, each.seq, each.partition, each.receipt) for each in deliver.unread]
    assert unread == [("b", 1, 2, "r-b"), ("d", 3, 2, "r-d")]
    assert "out of range" in deliver.unread[0].why
    assert others == [] or others == [ServerPing()]


def test_in_msgpack_too_a_message_with_a_field_of_another_type_is_set_apart() -> None:
    messages = [{"id": "a", "body": 1}, {"id": "b", "body": 2, "headers": 3}]
    (deliver,) = Codec("msgpack").unpack(encode("msgpack", {"type": "deliver", "sub": 1, "messages": messages}))
    assert isinstance(deliver, Deliver)
    assert [message.id for message in deliver.messages] == ["a"] and [each.id for each in deliver.unread] == ["b"]


@pytest.mark.parametrize(
    "data", ["{", "[1e999]", '{"type":"deliver","sub":1e999,"messages":[]}', '[[{"type":"ping"}]]']
)
def test_what_is_no_frame_at_all_is_unreadable_still(data: str) -> None:
    with pytest.raises(UnreadableFrame):
        Codec("json").unpack(data)
