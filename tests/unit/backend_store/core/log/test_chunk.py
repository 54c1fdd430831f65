"""Blocks and chunks: what goes in comes out, and no damaged byte does."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend_store.core.log.chunk import (
    ENTRY_CHUNK,
    ENTRY_HEADER_BYTES,
    KIND_BYTES,
    KIND_JSON,
    KIND_MIXED,
    Chunk,
    CorruptEntry,
    Draft,
    blocks_of,
    claimed_messages,
    decode_chunk,
    encode_entry,
    plain_blocks,
    plan_chunks,
)
from backend_store.model import (
    BLOCK_BYTES_MAX,
    BLOCK_MESSAGES_MAX,
    CHUNK_BYTES_MAX,
    CHUNK_MESSAGES_MAX,
    Block,
    Epoch,
    Offset,
)

SEED = 9

texts = st.text(max_size=20)
columns = st.fixed_dictionaries(
    {},
    optional={
        "id": texts.filter(bool),
        "key": texts,
        "content_type": texts,
        "headers": st.dictionaries(texts, texts, min_size=1, max_size=3),
        "reply_to": texts,
        "correlation_id": texts,
    },
)
drafts = st.builds(
    lambda kind, body, more: Draft(kind, body, more),
    st.sampled_from([KIND_JSON, KIND_BYTES]),
    st.binary(max_size=60) | st.just(b"x" * 5_000),
    st.none() | columns.map(lambda found: found or None),
)


def stored(blocks: list[Block], *, base: int = 0, epoch: int = 1) -> list[Chunk]:
    """Blocks as chunks, written and read back."""
    chunks = []
    for plan in plan_chunks(blocks):
        data, _ = encode_entry(
            ENTRY_CHUNK,
            plan.blocks,
            seed=SEED,
            epoch=Epoch(epoch),
            offset=Offset(base),
            time_ms=1_700_000_000_123,
            count=plan.messages,
        )
        chunks.append(decode_chunk(data, seed=SEED, offset=Offset(base)))
        base += plan.messages
    return chunks


def as_drafts(chunk: Chunk) -> list[Draft]:
    """A chunk's messages in the shape they were given in."""
    kind, bodies, columns = chunk.messages
    found = []
    for number, body in enumerate(bodies):
        row = {name: values[number] for name, values in (columns or {}).items() if values[number] is not None}
        own = row.pop("kind") if kind == KIND_MIXED else kind
        found.append(Draft(own, body, row or None))
    return found


@given(st.lists(drafts, min_size=1, max_size=80))
def test_messages_of_any_shape_come_back_in_their_order(given_drafts: list[Draft]) -> None:
    assert [d for chunk in stored(blocks_of(given_drafts).blocks) for d in as_drafts(chunk)] == given_drafts


@given(st.sampled_from([KIND_JSON, KIND_BYTES]), st.lists(st.binary(max_size=40), min_size=1, max_size=300))
def test_bodies_alone_come_back_and_have_no_columns(kind: int, bodies: list[bytes]) -> None:
    chunks = stored(plain_blocks(kind, bodies))
    assert [body for chunk in chunks for body in chunk.messages.bodies] == bodies
    assert all((c.messages.kind, c.messages.columns) == (kind, None) for c in chunks)


@given(st.lists(drafts, min_size=1, max_size=20))
def test_a_trace_stays_with_each_message(given_drafts: list[Draft]) -> None:
    (chunk, *others) = stored(blocks_of(given_drafts, trace="00-ab-cd-01").blocks)
    found = as_drafts(chunk) + [d for other in others for d in as_drafts(other)]
    assert all(d.columns is not None and d.columns["trace"] == "00-ab-cd-01" for d in found)


@given(st.lists(st.lists(drafts, min_size=1, max_size=10), min_size=1, max_size=8))
def test_blocks_of_different_shapes_share_a_chunk(calls: list[list[Draft]]) -> None:
    blocks = [block for call in calls for block in blocks_of(call).blocks]
    blocks += plain_blocks(KIND_BYTES, [b"plain"])
    found = [d for chunk in stored(blocks) for d in as_drafts(chunk)]
    assert found == [d for call in calls for d in call] + [Draft(KIND_BYTES, b"plain", None)]


@pytest.mark.parametrize("size", [0, 1, 100, BLOCK_BYTES_MAX, BLOCK_BYTES_MAX + 1, 1 << 20])
def test_a_message_of_any_allowed_size_stands_in_a_chunk(size: int) -> None:
    bodies = [b"a", b"x" * size, b"b"]
    assert [body for c in stored(plain_blocks(KIND_BYTES, bodies)) for body in c.messages.bodies] == bodies


@given(st.lists(st.integers(0, 3 * BLOCK_BYTES_MAX), min_size=1, max_size=150))
@settings(max_examples=30)
def test_blocks_and_chunks_keep_their_limits_unless_one_message_breaks_them(sizes: list[int]) -> None:
    blocks = plain_blocks(KIND_BYTES, [b"x" * size for size in sizes])
    assert sum(block.count for block in blocks) == len(sizes)
    assert all(block.count == 1 or len(block.data) <= BLOCK_BYTES_MAX + 500 for block in blocks)
    assert all(block.count <= BLOCK_MESSAGES_MAX for block in blocks)
    ends = [*accumulate(block.count for block in blocks)]
    for start, end in pairwise([0, *ends[:-1]]):  # no block had room for the first message of the next one
        assert end - start == BLOCK_MESSAGES_MAX or sum(sizes[start : end + 1]) > BLOCK_BYTES_MAX
    for plan in plan_chunks(blocks):
        assert plan.messages <= CHUNK_MESSAGES_MAX
        assert len(plan.blocks) == 1 or sum(map(len, plan.blocks)) <= CHUNK_BYTES_MAX


def test_the_header_says_what_recovery_needs() -> None:
    (chunk,) = stored(plain_blocks(KIND_JSON, [b"1", b"2"]), base=500, epoch=3)
    assert (chunk.base, chunk.epoch, chunk.count, chunk.time_ms, chunk.shelf) == (500, 3, 2, 1_700_000_000_123, 0)


# ---------------------------------------------------------------------------------------------------- damage

MIXED = [Draft(KIND_JSON, b'{"a":1}', {"id": "x", "headers": {"h": "v"}}), Draft(KIND_BYTES, b"\x00\xff", None)]


@pytest.mark.parametrize(
    "blocks", [plain_blocks(KIND_JSON, [b"1", b'"two"']), blocks_of(MIXED).blocks], ids=["plain", "mixed"]
)
def test_every_flipped_bit_of_a_chunk_is_noticed(blocks: list[Block]) -> None:
    (chunk,) = stored(blocks, base=5)
    for at in range(len(chunk.data) * 8):
        damaged = bytearray(chunk.data)
        damaged[at // 8] ^= 1 << at % 8
        with pytest.raises(CorruptEntry):
            decode_chunk(bytes(damaged), seed=SEED, offset=Offset(5))


def test_every_cut_and_every_surplus_byte_is_noticed() -> None:
    (chunk,) = stored(blocks_of(MIXED).blocks)
    for size in range(len(chunk.data)):
        with pytest.raises(CorruptEntry):
            decode_chunk(chunk.data[:size], seed=SEED)
    with pytest.raises(CorruptEntry):
        decode_chunk(chunk.data + b"\0", seed=SEED)


def test_a_chunk_in_another_partition_or_at_another_place_is_noticed() -> None:
    (chunk,) = stored(plain_blocks(KIND_JSON, [b"1"]), base=5)
    with pytest.raises(CorruptEntry, match="checksum"):
        decode_chunk(chunk.data, seed=SEED + 1, offset=Offset(5))
    with pytest.raises(CorruptEntry, match="offset 5 lies at offset 6"):
        decode_chunk(chunk.data, seed=SEED, offset=Offset(6))


@given(st.binary(max_size=300))
def test_any_bytes_are_a_chunk_or_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptEntry):
        decode_chunk(data, seed=SEED)


@given(st.binary(min_size=0, max_size=100))
def test_what_a_broken_entry_claims_is_bounded(data: bytes) -> None:
    assert 0 <= claimed_messages(data) <= CHUNK_MESSAGES_MAX


def test_a_broken_entry_still_says_how_many_messages_it_held() -> None:
    (chunk,) = stored(plain_blocks(KIND_JSON, [b"1"] * 7))
    assert claimed_messages(chunk.data[:ENTRY_HEADER_BYTES] + b"garbage") == 7


def test_each_entry_knows_the_checksum_of_the_one_before() -> None:
    (block,) = plain_blocks(KIND_JSON, [b"1"])
    how: dict[str, Any] = {"seed": SEED, "epoch": Epoch(1), "time_ms": 1, "count": 1}
    first, crc = encode_entry(ENTRY_CHUNK, [block.data], offset=Offset(0), **how)
    second, _ = encode_entry(ENTRY_CHUNK, [block.data], offset=Offset(1), prev_crc=crc, **how)
    other, _ = encode_entry(ENTRY_CHUNK, [block.data], offset=Offset(1), prev_crc=crc ^ 1, **how)
    assert crc.to_bytes(4, "big") in second[:ENTRY_HEADER_BYTES]
    assert second != other and first != second
