"""Server-sent events as bytes, read back as a browser reads them."""

from __future__ import annotations

import json

import pytest

from backend_store.core.log.chunk import KIND_JSON, Draft
from backend_store.core.log.cursor import Stand, decode_cursor
from backend_store.model import Epoch, Offset, Position
from push.delivery.fanout import websocket_framer
from push.encoding.sse import json_event, message_events, sse_framer
from push.limits import RENDERED_PER_CHUNK_MAX
from tests.support.world import REPLICA, World


def parsed(data: bytes) -> list[dict[str, str]]:
    """The events of a stream, as the standard says: fields up to an empty line, and a line ends with CR, LF or both."""
    found = []
    for block in data.decode().replace("\r\n", "\n").replace("\r", "\n").split("\n\n")[:-1]:
        found.append(dict(line.split(": ", 1) for line in block.split("\n")))
    return found


def test_an_event_has_its_name_its_data_and_what_else_is_given() -> None:
    assert parsed(message_events([b"{}", b"[]"], ["abc", "abd"])) == [
        {"id": "abc", "event": "message", "data": "{}"},
        {"id": "abd", "event": "message", "data": "[]"},
    ]
    assert parsed(json_event("bye", {"a": 1})) == [{"event": "bye", "data": '{"a":1}'}]
    assert parsed(json_event("bye", {"a": 1}, retry_ms=500)) == [{"retry": "500", "event": "bye", "data": '{"a":1}'}]


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_a_body_that_was_written_over_several_lines_stays_within_its_event(end: bytes) -> None:
    written = end.join([b"{", b'  "a": "b\\nc",', b"", b"", b'  "id: x": [', b"1", b"]", b"}"])
    plain, spread = parsed(message_events([b'{"body":1}', b'{"body":' + written + b"}"], ["one", "two"]))
    assert json.loads(plain["data"]) == {"body": 1}
    assert json.loads(spread["data"]) == {"body": {"a": "b\nc", "id: x": [1]}}
    assert spread["id"] == "two", "no line of a body is taken for a field"


def test_texts_with_line_ends_stay_on_one_line() -> None:
    (found,) = parsed(json_event("ended", {"detail": "a\nb\r\nc\u2028"}))
    assert json.loads(found["data"]) == {"detail": "a\nb\r\nc\u2028"}


def test_each_message_of_a_stream_is_an_event_with_the_cursor_after_it() -> None:
    world = World(kind="stream")
    world.publish_drafts([Draft(KIND_JSON, b'"a\\nb"', None), Draft(KIND_JSON, b"2", {"headers": {"h": "x\ny"}})])
    world.commit()
    chunk = world.partition.read(Offset(0))
    assert chunk is not None
    events = parsed(sse_framer(chunk, 0, 2, 0))
    assert [json.loads(e["data"])["body"] for e in events] == ["a\nb", 2]
    stood = [decode_cursor(e["id"]) for e in events]
    assert stood == [Stand(REPLICA, {0: Position(Epoch(1), Offset(n))}) for n in (1, 2)]
    assert sse_framer(chunk, 0, 2, 5) is sse_framer(chunk, 0, 2, 9), "made once for all"


def test_the_bytes_kept_with_a_chunk_are_bounded() -> None:
    """Readers with credit cut a chunk wherever they like, and each session numbers its subscriptions itself."""
    world = World(kind="stream")
    world.stored(*[b"1"] * 64)
    chunk = world.partition.read(Offset(0))
    assert chunk is not None
    framer = websocket_framer("json", bytes)
    for stop in range(1, 64):
        sse_framer(chunk, 0, stop, 0)
        framer(chunk, 0, stop, stop)
        assert len(chunk.rendered) <= RENDERED_PER_CHUNK_MAX
    assert framer(chunk, 0, 63, 63) is framer(chunk, 0, 63, 63)
