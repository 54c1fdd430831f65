"""A whole number written with a fraction of zero is read as the number that it is, and nothing else is touched."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import pytest

from backend_store.model import MESSAGES_PER_REQUEST_MAX
from push.encoding.whole_numbers import text_with_whole_numbers
from push.protocol import ClientFrame, Publish, PublishMessage


class Message(msgspec.Struct, forbid_unknown_fields=True):
    body: msgspec.Raw
    priority: int | None = None
    share: float = 0.0


class Body(msgspec.Struct, forbid_unknown_fields=True):
    messages: list[Message]
    receipts: list[Annotated[str, msgspec.Meta(min_length=1)]] = []
    limit: Annotated[int, msgspec.Meta(extra_json_schema={"minimum": 0})] = 0


@pytest.mark.parametrize(
    ("given", "written"),
    [
        (b'{"messages":[],"limit":6.0}', b'{"messages":[],"limit":6}'),
        (b'{"messages":[],"limit":-1e2}', b'{"messages":[],"limit":-100}'),
        (b'{"messages":[{"body":1,"priority":6.00}]}', b'{"messages":[{"body":1,"priority":6}]}'),
        (b' { "messages" : [ { "body" : 1 , "priority" : 2.0 } ] }', b'{"messages":[{"body":1,"priority":2}]}'),
        (b'{"messages":[{"body":{"priority":6.0},"share":6.0}]}',) * 2,
        (b'{"messages":[{"body":[1.0, 2],"priority":null}],"more":1.0}',) * 2,
        (b'{"messages":[],"limit":6.5}',) * 2,
        (b'{"messages":[],"limit":9007199254740993.0}',) * 2,
        (b'{"messages":[],"limit":1e400}',) * 2,
        (b'{"messages":[],"limit":"6.0"}',) * 2,
        (b'{"messages":6.0}',) * 2,
        (b'{"messages":[],"receipts":[ "a",6.0 ]}',) * 2,
        (b"[6.0]",) * 2,
        (b"6.0",) * 2,
    ],
)
def test_integers_are_written_as_integers_and_the_rest_as_it_was(given: bytes, written: bytes) -> None:
    assert text_with_whole_numbers(given, Body) == written
    assert text_with_whole_numbers(written, Body) == written


@pytest.mark.parametrize("wrapped", [b"%b", b"[%b]"])
def test_in_a_frame_the_type_says_which_fields_are_integers(wrapped: bytes) -> None:
    given = wrapped % b'{"type":"publish","id":7.0,"queue":"q","messages":[{"body":1.0,"priority":3.0}]}'
    kind: Any = ClientFrame | list[ClientFrame]
    frame = msgspec.json.decode(text_with_whole_numbers(given, kind), type=kind)
    [frame] = frame if isinstance(frame, list) else [frame]
    assert frame == Publish(id=7, queue="q", messages=[PublishMessage(body=msgspec.Raw(b"1.0"), priority=3)])
    unknown = wrapped % b'{"type":"shout","id":7.0}'
    assert text_with_whole_numbers(unknown, kind) == unknown


def test_more_items_than_a_request_may_have_are_not_looked_at() -> None:
    most = b'{"messages":[%b],"limit":6.0}' % b",".join([b'{"body":1,"priority":2.0}'] * 2 * MESSAGES_PER_REQUEST_MAX)
    assert msgspec.json.decode(text_with_whole_numbers(most, Body), type=Body).limit == 6
    more = most.replace(b"[", b"[{},", 1)
    assert text_with_whole_numbers(more, Body) is more


def test_what_does_not_parse_is_the_decoders_own_error() -> None:
    for text in (b'{"messages":[{"body":1,"priority":6.0}', b'{"messages":[{]}'):
        with pytest.raises(msgspec.DecodeError):
            text_with_whole_numbers(text, Body)
