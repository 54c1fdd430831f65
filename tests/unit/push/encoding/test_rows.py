"""Messages with columns as bytes: written many at a time, they say what they say one by one."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_store.client.messages import full_message
from backend_store.core.leases.leases import ChunkState, Lease
from backend_store.core.leases.receipts import SUFFIXES
from backend_store.core.log.bits import indexes
from backend_store.core.log.block import punch
from backend_store.core.log.chunk import (
    ENTRY_CHUNK,
    KIND_BYTES,
    KIND_JSON,
    Chunk,
    Draft,
    blocks_of,
    decode_chunk,
    encode_entry,
    plain_blocks,
)
from backend_store.core.log.sublogs import DEAD, LATE, MAIN, SCHEDULED
from backend_store.model import Block, Epoch, Offset, Stamp
from push.encoding.deliveries import ROWS_MIN, leased_messages, stream_messages, visible
from push.ports import Encoding

ENCODINGS: list[Encoding] = ["json", "msgpack"]
TIME_MS = 1_700_000_000_123
DIED = {
    "from": "orders",
    "reason": "max_attempts",
    "at": TIME_MS + 5,
    "attempts": 2,
    "history": [[1, TIME_MS + 1, "nacked", "no stock"], [2, TIME_MS + 2, "timed_out", None]],
    "priority": 3,
}

texts = st.sampled_from(["", "%", "%d%b", '"', "\\", "\u0000", "ü€😀", "\u2028\n"]) | st.text(max_size=8)
bodies = st.sampled_from(
    [(KIND_JSON, b'{"a": "%d"}'), (KIND_JSON, b"null"), (KIND_BYTES, b"%b\x00\xff"), (KIND_BYTES, b"")]
)
columns = st.fixed_dictionaries(
    {},
    optional={
        "id": texts.filter(bool),
        "key": texts,
        "content_type": texts.filter(bool),
        "headers": st.dictionaries(texts, texts, min_size=1, max_size=3),
        "reply_to": texts,
        "correlation_id": texts,
        "at": st.integers(0, TIME_MS),
        "late": st.just(True),
        "dead": st.sampled_from([DIED, {**DIED, "priority": 0, "history": []}]),
    },
)
stamps = st.builds(Stamp, st.sampled_from([0, 1, TIME_MS * 1000, TIME_MS * 1000 + 7]), st.just("p"), st.integers(1, 9))
drafts = st.builds(
    lambda body, more, stamp, expires: Draft(*body, more or None, stamp=stamp, expires_ms=expires),
    bodies,
    columns,
    st.none() | stamps,
    st.sampled_from([0, 0, TIME_MS + 1]),
)


class Nobody:
    """Holds a lease and hears nothing."""

    gateway = ""

    def released(self, count: int) -> None: ...
    def lost(self, receipts: list[str], *, ran_out: bool = True) -> None: ...
    def sendable(self) -> None: ...


def chunk_of(blocks: list[Block], *, shelf: int = MAIN, partition: int = 0, base: int = 2**33) -> Chunk:
    data, _ = encode_entry(
        ENTRY_CHUNK,
        [block.data for block in blocks],
        seed=1,
        epoch=Epoch(1),
        offset=Offset(base),
        time_ms=TIME_MS,
        count=sum(block.count for block in blocks),
        shelf=shelf,
    )
    chunk = decode_chunk(data, seed=1)
    chunk.partition = partition
    return chunk


def lease_of(chunk: Chunk, bits: int | None = None) -> Lease:
    state = ChunkState(chunk)
    return Lease("token", state, state.full if bits is None else bits, Nobody(), 0, chunk)


def read(data: bytes, encoding: Encoding) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(data) if encoding == "json" else msgspec.msgpack.decode(data)
    return plain(found)


def plain(message: dict[str, Any]) -> dict[str, Any]:
    """`body` as a value, whatever stands for it."""
    found = dict(message)
    if "body_base64" in found:
        found["body"] = b64decode(found.pop("body_base64"))
    elif isinstance(found["body"], msgspec.Raw):
        found["body"] = json.loads(bytes(found["body"]))
    return found


def assert_rows_say_the_same(chunk: Chunk, bits: int, attempts: dict[int, int]) -> None:
    for encoding in ENCODINGS:
        lease = lease_of(chunk, bits)
        lease.state.attempts.update(attempts)
        wanted = [
            plain(full_message(chunk, n)) | {"attempt": attempts.get(n, 1), "receipt": f"token{SUFFIXES[n]}"}
            for n in indexes(bits)
        ]
        assert [read(data, encoding) for data in leased_messages(lease, encoding)] == wanted


@given(st.lists(drafts, min_size=1, max_size=12), st.data())
def test_rows_of_any_columns_say_what_a_dictionary_says(given_drafts: list[Draft], data: st.DataObject) -> None:
    shelf = data.draw(st.sampled_from([MAIN, 4, SCHEDULED + 2, DEAD, LATE]))
    blocks = [block for draft in given_drafts for block in blocks_of([draft]).blocks]
    blocks += blocks_of(given_drafts).blocks
    chunk = chunk_of(blocks, shelf=shelf, partition=data.draw(st.sampled_from([0, 1, 12_345])))
    bits = data.draw(st.integers(1, (1 << chunk.count) - 1))
    attempts = data.draw(st.dictionaries(st.integers(0, chunk.count - 1), st.integers(2, 300), max_size=3))
    assert_rows_say_the_same(chunk, bits, attempts)
    assert_rows_say_the_same(chunk, (1 << chunk.count) - 1, {})


@pytest.mark.parametrize("kind", [KIND_JSON, KIND_BYTES])
@pytest.mark.parametrize(("shelf", "partition"), [(MAIN, 0), (MAIN, 7), (9, 0), (SCHEDULED + 9, 1_000)])
def test_bodies_alone_say_their_priority_and_partition(kind: int, shelf: int, partition: int) -> None:
    chunk = chunk_of(plain_blocks(kind, [b"1", b'"%d"', b"3"]), shelf=shelf, partition=partition)
    assert_rows_say_the_same(chunk, 0b111, {})
    assert_rows_say_the_same(chunk, 0b101, {2: 9})
    assert full_message(chunk, 1)["priority"] == shelf & 15
    assert full_message(chunk, 1)["id"] == f"{partition}-{2**33 + 1:012x}"


def test_a_key_alone_needs_no_dictionary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("push.encoding.deliveries.full_message", None)
    chunk = chunk_of(blocks_of([Draft(KIND_JSON, b"1", {"key": f"k{n}"}) for n in range(ROWS_MIN)]).blocks)
    assert [read(m, "json")["key"] for m in leased_messages(lease_of(chunk), "json")] == ["k0", "k1", "k2"]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("more", [None, {"key": "k"}], ids=["bodies", "keys"])
def test_a_lease_that_is_settled_already_has_no_receipts(
    encoding: Encoding, count: int, more: dict[str, Any] | None
) -> None:
    chunk = chunk_of(blocks_of([Draft(KIND_JSON, b"1", more)] * count).blocks)
    lease = lease_of(chunk)
    lease.receipts = False
    found = [read(data, encoding) for data in leased_messages(lease, encoding)]
    assert [(m["receipt"], m["attempt"]) for m in found] == [(None, 1)] * count


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_message_with_every_field_passes(encoding: Encoding) -> None:
    """Eighteen fields: more than MessagePack's short header of a map takes."""
    more = {"id": "i", "key": "k", "headers": {"h": "v"}, "reply_to": "r", "correlation_id": "c", "dead": DIED}
    draft = Draft(
        KIND_JSON,
        b"1",
        {**more, "late": True, "at": 5},
        expires_ms=TIME_MS,
        stamp=Stamp(TIME_MS * 1000 + 1, "p%d", 2**63 - 1),
    )
    messages = leased_messages(lease_of(chunk_of(blocks_of([draft] * 4).blocks, shelf=DEAD)), encoding)
    message = read(messages[0], encoding)
    assert len(message) == 18
    assert message["published_at"] == "1970-01-01T00:00:00.005Z"
    assert message["expires_at"] == "2023-11-14T22:13:20.123Z"
    assert message["ordering"] == {"timestamp": "2023-11-14T22:13:20.123001Z", "late": True}
    assert message["dead_letter"] == {
        "from": "orders",
        "reason": "max_attempts",
        "at": "2023-11-14T22:13:20.128Z",
        "attempts": 2,
        "history": [
            {"attempt": 1, "at": "2023-11-14T22:13:20.124Z", "outcome": "nacked", "reason": "no stock"},
            {"attempt": 2, "at": "2023-11-14T22:13:20.125Z", "outcome": "timed_out", "reason": None},
        ],
    }
    assert message["priority"] == 3
    assert (message["producer"], message["producer_seq"]) == ("p%d", 2**63 - 1)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_message_says_who_numbered_it_and_its_neighbour_without_a_number_does_not(encoding: Encoding) -> None:
    stamps = [Stamp(0, "p", 1), None, Stamp(0, "q", 9), Stamp(TIME_MS * 1000)]
    chunk = chunk_of(blocks_of([Draft(KIND_JSON, b"1", None, stamp=stamp) for stamp in stamps]).blocks)
    found = [read(data, encoding) for data in leased_messages(lease_of(chunk), encoding)]
    told = [{name: m[name] for name in ("producer", "producer_seq") if name in m} for m in found]
    assert told == [{"producer": "p", "producer_seq": 1}, {}, {"producer": "q", "producer_seq": 9}, {}]
    assert ["ordering" in m for m in found] == [False, False, False, True]


# ------------------------------------------------------------------------------------------------------ streams


@given(st.lists(drafts, min_size=1, max_size=10), st.data())
def test_a_stream_shows_all_but_holes(given_drafts: list[Draft], data: st.DataObject) -> None:
    (block,) = blocks_of(given_drafts).blocks
    gone = data.draw(st.integers(0, (1 << block.count) - 1))
    chunk = chunk_of([punch(block, gone)])
    start = data.draw(st.integers(0, chunk.count - 1))
    stop = data.draw(st.integers(start + 1, chunk.count))
    numbers = [n for n in range(start, stop) if not gone >> n & 1]
    assert list(visible(chunk, start, stop)) == numbers
    wanted = [plain(full_message(chunk, n)) | {"attempt": 1, "receipt": None} for n in numbers]
    for encoding in ENCODINGS:
        assert [read(m, encoding) for m in stream_messages(chunk, start, stop, encoding)] == wanted
