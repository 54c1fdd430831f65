"""Messages as bytes: both encodings say the same, and the fast way says what the slow way says."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_store.client.messages import full_message
from backend_store.core.leases.leases import Lease
from backend_store.core.leases.receipts import SUFFIXES
from backend_store.core.log.chunk import KIND_BYTES, KIND_JSON, Chunk, Draft
from backend_store.model import Offset
from push.encoding.deliveries import (
    array_header,
    deliver_frame,
    encode,
    join,
    leased_messages,
    stream_messages,
)
from push.encoding.rows import as_msgpack
from push.ports import Encoding
from tests.support.world import World, receipts_by_seq

ENCODINGS: list[Encoding] = ["json", "msgpack"]
ODD_TEXTS = ["", "%", "%s%%d%b", '"', "'", "\\", "\u0000", "ü€😀", "\u2028\n\r\t", "</script>", "a" * 300]
ODD_BYTES = [
    b"",
    b"\x00",
    b"%b%%",
    bytes(range(256)),
    b'"\\',
    b"x" * 255,
    b"x" * 256,
    b"x" * 1023,
    b"x" * 1024,
    b"x" * 65_536,
]

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
bodies = values.map(lambda v: (KIND_JSON, msgspec.json.encode(v))) | st.binary(max_size=40).map(
    lambda b: (KIND_BYTES, b)
)
texts = st.sampled_from(ODD_TEXTS) | st.text(max_size=8)
columns = st.fixed_dictionaries(
    {},
    optional={
        "id": texts.filter(bool),
        "key": texts,
        "content_type": texts.filter(bool),
        "headers": st.dictionaries(texts, texts, min_size=1, max_size=3),
        "reply_to": texts,
        "correlation_id": texts,
    },
)
drafts = st.builds(lambda body, more: Draft(body[0], body[1], more or None), bodies, st.none() | columns)


def lease_of(given_drafts: list[Draft], attempts: int = 1) -> Lease:
    world = World()
    world.publish_drafts(given_drafts)
    world.commit()
    for _ in range(attempts - 1):
        world.nack(*receipts_by_seq(world.leased(256)).values())
    return world.leased(256)


def read(data: bytes, encoding: Encoding) -> Any:
    return json.loads(data) if encoding == "json" else msgspec.msgpack.decode(data)


def plain(message: dict[str, Any]) -> dict[str, Any]:
    """`body` as a value, whatever stands for it."""
    found = dict(message)
    if "body_base64" in found:
        found["body"] = b64decode(found.pop("body_base64"))
    elif isinstance(found["body"], msgspec.Raw):
        found["body"] = json.loads(bytes(found["body"]))
    return found


def expected(lease: Lease, chunk: Chunk) -> list[dict[str, Any]]:
    """The dictionaries, made one by one."""
    return [
        plain(full_message(chunk, n)) | {"attempt": lease.attempt_of(n), "receipt": lease.token + SUFFIXES[n]}
        for n in range(chunk.count)
        if lease.bits >> n & 1
    ]


def assert_both_say(lease: Lease) -> None:
    chunk = lease.chunk
    assert chunk is not None
    wanted = expected(lease, chunk)
    for encoding in ENCODINGS:
        lease.chunk = chunk
        assert [plain(read(data, encoding)) for data in leased_messages(lease, encoding)] == wanted


@given(st.lists(drafts, min_size=1, max_size=12), st.integers(1, 3))
def test_a_lease_of_any_messages_says_the_same_in_both_encodings(given_drafts: list[Draft], attempts: int) -> None:
    assert_both_say(lease_of(given_drafts, attempts))


@given(st.lists(bodies, min_size=1, max_size=12), st.integers(1, 3))
def test_bodies_alone_go_through_a_template_that_says_the_same(some: list[tuple[int, bytes]], attempts: int) -> None:
    kind = some[0][0]
    assert_both_say(lease_of([Draft(k, body, None) for k, body in some if k == kind], attempts))


@given(st.lists(st.tuples(st.none() | texts.filter(bool), st.binary(max_size=20)), min_size=1, max_size=12))
def test_bytes_with_names_go_through_a_template_that_says_the_same(some: list[tuple[str | None, bytes]]) -> None:
    drafts = [Draft(KIND_BYTES, body, {"id": name} if name else None) for name, body in some]
    for attempts in (1, 2):
        assert_both_say(lease_of(drafts, attempts))


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_texts_that_mean_something_to_templates_pass_through_them(text: str) -> None:
    assert_both_say(lease_of([Draft(KIND_JSON, msgspec.json.encode(text), None)] * 3))
    assert_both_say(lease_of([Draft(KIND_JSON, msgspec.json.encode({text: [text]}), None)], attempts=2))
    given_columns = {"id": text or "i", "key": text, "headers": {text: text}, "reply_to": text}
    assert_both_say(lease_of([Draft(KIND_JSON, b"1", given_columns)]))


@pytest.mark.parametrize("body", ODD_BYTES, ids=lambda body: f"{len(body)} bytes")
def test_bytes_of_any_size_pass_through_the_templates(body: bytes) -> None:
    assert_both_say(lease_of([Draft(KIND_BYTES, body, None)] * 2))
    assert_both_say(lease_of([Draft(KIND_BYTES, body, None), Draft(KIND_BYTES, body, None)], attempts=2))


def test_a_body_of_a_mebibyte_passes() -> None:
    for draft in (Draft(KIND_BYTES, b"x" * (1 << 20), None), Draft(KIND_JSON, b'"%b"' % (b"x" * (1 << 20)), None)):
        assert_both_say(lease_of([draft]))


def test_a_lease_with_holes_shows_its_own_messages_only() -> None:
    world = World()
    world.publish_drafts([Draft(KIND_JSON, b"%d" % n, None) for n in range(6)])
    world.commit()
    receipts = receipts_by_seq(world.leased(6))
    world.nack(receipts[1], receipts[3], receipts[4])
    lease = world.leased(6)
    assert lease.chunk is not None
    assert [m["seq"] for m in expected(lease, lease.chunk)] == [1, 3, 4]
    assert_both_say(lease)


def test_json_stands_in_a_json_frame_as_it_was_sent() -> None:
    """Spaces, the order of fields, 1.0 and big numbers are the producer's business."""
    body = b'{"b": 1.0, "a":1e400, "a":12345678901234567890123}'
    (data,) = leased_messages(lease_of([Draft(KIND_JSON, body, None)]), "json")
    assert body in data


@pytest.mark.parametrize("body", [b"1e400", b"123456789012345678901234567890", b'{"a":' * 2_000 + b"1" + b"}" * 2_000])
def test_what_messagepack_cannot_hold_goes_as_its_json_text_in_bytes(body: bytes) -> None:
    found = msgspec.msgpack.decode(as_msgpack(body)) if len(body) < 100 else as_msgpack(body)
    assert found == body or isinstance(found, float | bytes)
    (data,) = leased_messages(lease_of([Draft(KIND_JSON, body, None)]), "msgpack")
    assert isinstance(data, bytes)


def test_a_lease_lets_go_of_its_chunk_when_it_is_encoded() -> None:
    lease = lease_of([Draft(KIND_JSON, b"1", None)])
    leased_messages(lease, "json")
    assert lease.chunk is None


# ------------------------------------------------------------------------------------------------------ streams


@given(st.lists(drafts, min_size=1, max_size=8), st.data())
def test_a_stream_says_the_same_in_both_encodings_and_has_no_receipts(
    given_drafts: list[Draft], data: st.DataObject
) -> None:
    world = World(kind="stream")
    world.publish_drafts(given_drafts)
    world.commit()
    chunk = world.partition.read(Offset(0))
    assert chunk is not None
    start = data.draw(st.integers(0, chunk.count - 1))
    stop = data.draw(st.integers(start + 1, chunk.count))
    wanted = [plain(full_message(chunk, n)) | {"attempt": 1, "receipt": None} for n in range(start, stop)]
    for encoding in ENCODINGS:
        assert [plain(read(m, encoding)) for m in stream_messages(chunk, start, stop, encoding)] == wanted


# ------------------------------------------------------------------------------------------------------- frames


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("count", [0, 1, 15, 16, 300])
@pytest.mark.parametrize("cursor", [None, "abc"])
def test_a_deliver_frame_holds_its_messages(encoding: Encoding, count: int, cursor: str | None) -> None:
    messages = [encode({"n": n}, encoding) for n in range(count)]
    wanted: dict[str, Any] = {"type": "deliver", "sub": 1_000, "messages": [{"n": n} for n in range(count)]}
    frame = read(deliver_frame(1_000, messages, encoding, cursor), encoding)
    assert frame == wanted | ({} if cursor is None else {"cursor": cursor})


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_objects_that_share_a_frame_are_a_list_and_one_stands_alone(encoding: Encoding) -> None:
    parts = [encode({"n": n}, encoding) for n in range(20)]
    assert read(join(parts, encoding), encoding) == [{"n": n} for n in range(20)]
    assert read(join(parts[:1], encoding), encoding) == {"n": 0}


@pytest.mark.parametrize("size", [0, 15, 16, 65_535, 65_536])
def test_a_header_of_a_list_says_its_length(size: int) -> None:
    assert len(msgspec.msgpack.decode(array_header(size) + b"\x01" * size)) == size
