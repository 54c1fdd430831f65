"""Columns that the store reads itself, messages that are none, and messages that move to another shelf or queue."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from backend_store.core.log.bits import indexes
from backend_store.core.log.block import BLOCK_HEAD
from backend_store.core.log.chunk import (
    ENTRY_HEADER_BYTES,
    KIND_BYTES,
    KIND_JSON,
    Chunk,
    Draft,
    blocks_of,
    clear_column,
    extract,
    holes,
    plain_blocks,
    punch,
)
from backend_store.model import BLOCK_MESSAGES_MAX, Block, Stamp
from tests.unit.backend_store.core.log.test_chunk import as_drafts, drafts, stored

TIME_MS = 1_700_000_000_123

stamped_drafts = st.builds(
    lambda draft, priority, due, expires, stamp: draft._replace(
        priority=priority, due_ms=due, expires_ms=expires, stamp=stamp
    ),
    drafts,
    st.integers(0, 2),
    st.sampled_from([0, 0, 5_000, 9_000]),
    st.sampled_from([0, 0, 1_000]),
    st.none() | st.builds(Stamp, st.just(7_000_001), st.sampled_from(["p", "q"]), st.integers(1, 9)),
)


def one(blocks: list[Block]) -> Chunk:
    (chunk,) = stored(blocks)
    return chunk


def column(drafts: list[Draft], name: str) -> list[Any]:
    return [(draft.columns or {}).get(name) for draft in drafts]


# ------------------------------------------------------------------------------------------------------ grouping


@given(st.lists(stamped_drafts, min_size=1, max_size=30))
def test_each_block_has_one_priority_and_one_due_time_and_the_order_says_who_is_where(given: list[Draft]) -> None:
    blocks, order = blocks_of(given)
    at = 0
    numbers = list(range(len(given))) if order is None else order
    assert sorted(numbers) == list(range(len(given)))
    for block in blocks:
        part = [given[n] for n in numbers[at : at + block.count]]
        assert {(d.priority, d.due_ms) for d in part} == {(block.priority, block.due_ms)}
        assert [d.body for chunk in stored([block]) for d in as_drafts(chunk)] == [d.body for d in part]
        at += block.count
    assert at == len(given)


def test_messages_of_one_priority_and_due_time_stay_in_their_order() -> None:
    given = [Draft(KIND_JSON, b"%d" % n, None, priority=n % 2) for n in range(6)]
    blocks, order = blocks_of(given)
    assert [(b.priority, b.count) for b in blocks] == [(0, 3), (1, 3)] and order == [0, 2, 4, 1, 3, 5]
    assert blocks_of(given[::2]).order is None


@given(st.lists(stamped_drafts, min_size=1, max_size=100))
def test_a_block_tells_the_leader_ids_keys_expiry_and_stamps(given: list[Draft]) -> None:
    given = [d._replace(priority=0, due_ms=0, dedupe=bytes([n]) * 16) for n, d in enumerate(given)]
    at = 0
    for block in blocks_of(given).blocks:
        part = given[at : at + block.count]
        assert block.traits is not None and list(block.traits.ids or []) == [d.dedupe for d in part]
        assert list(block.traits.keys or [None] * len(part)) == column(part, "key")
        assert list(block.traits.expires or [0] * len(part)) == [d.expires_ms for d in part]
        assert list(block.traits.stamps or [None] * len(part)) == [d.stamp for d in part]
        at += block.count


def test_a_block_of_bodies_has_nothing_to_tell() -> None:
    (general,), _ = blocks_of([Draft(KIND_JSON, b"1", None), Draft(KIND_JSON, b"2", {"headers": {"a": "b"}})])
    (plain,) = plain_blocks(KIND_JSON, [b"1"])
    assert general.traits is None and plain.traits is None


# ------------------------------------------------------------------------------------------------- clear columns


@given(st.lists(st.lists(stamped_drafts, min_size=1, max_size=8), min_size=1, max_size=6))
def test_a_clear_column_is_read_without_the_bodies_and_says_the_same(calls: list[list[Draft]]) -> None:
    calls = [[d._replace(priority=0, due_ms=0) for d in call] for call in calls]
    for chunk in stored([block for call in calls for block in blocks_of(call).blocks]):
        columns = {name: clear_column(chunk, name) for name in ("id", "key", "exp", "ts", "pr", "ps")}
        assert chunk._messages is None
        whole = chunk.messages.columns or {}
        assert {name: values for name, values in columns.items() if values is not None} == {
            name: values for name, values in whole.items() if name in columns
        }


def test_a_column_that_no_block_has_is_none_and_expiry_is_zero_where_there_is_none() -> None:
    chunk = one(plain_blocks(KIND_JSON, [b"1", b"2"]) + blocks_of([Draft(KIND_JSON, b"3", None, expires_ms=9)]).blocks)
    assert clear_column(chunk, "exp") == [0, 0, 9]
    assert clear_column(chunk, "key") is None


def test_a_chunk_of_bodies_says_in_its_header_that_it_has_no_clear_parts() -> None:
    chunk = one(plain_blocks(KIND_JSON, [b"1"]))
    chunk.data = chunk.data[:ENTRY_HEADER_BYTES]
    assert clear_column(chunk, "key") is None and holes(chunk) == 0


def test_a_value_that_all_messages_have_is_stored_once() -> None:
    same = blocks_of([Draft(KIND_JSON, b"1", {"key": "k" * 100})] * 50).blocks[0]
    other = blocks_of([Draft(KIND_JSON, b"1", {"key": f"{n:0100}"}) for n in range(50)]).blocks[0]
    assert len(same.data) < 700 < 5_000 < len(other.data)
    assert clear_column(one([same]), "key") == ["k" * 100] * 50


# --------------------------------------------------------------------------------------------------------- holes


@given(st.lists(drafts, min_size=1, max_size=20), st.data())
def test_punched_messages_are_holes_and_all_else_stays(given: list[Draft], data: st.DataObject) -> None:
    blocks = [block for draft in given for block in blocks_of([draft, Draft(KIND_BYTES, b"last", None)]).blocks]
    wanted, at, punched = 0, 0, []
    for block in blocks:
        first = data.draw(st.integers(0, (1 << block.count) - 1))
        second = data.draw(st.integers(0, (1 << block.count) - 1))
        wanted |= (first | second) << at
        at += block.count
        punched.append(punch(punch(block, first), second))
    before, after = stored(blocks), stored(punched)
    assert [d for chunk in after for d in as_drafts(chunk)] == [d for chunk in before for d in as_drafts(chunk)]
    assert sum(holes(chunk) << chunk.base for chunk in after) == wanted
    assert [b.traits for b in punched] == [b.traits for b in blocks]


def test_to_punch_nothing_changes_nothing() -> None:
    (block,) = plain_blocks(KIND_JSON, [b"1"])
    assert punch(block, 0) is block


def test_a_sealed_block_can_be_punched_by_who_cannot_read_it() -> None:
    (block,) = blocks_of([Draft(KIND_JSON, b"1", {"key": "k"}), Draft(KIND_JSON, b"2", None)]).blocks
    flags, _, *rest = BLOCK_HEAD.unpack_from(block.data)
    sealed = Block(BLOCK_HEAD.pack(flags, 7, *rest) + block.data[BLOCK_HEAD.size :], 2)
    chunk = one([punch(sealed, 0b10)])
    assert holes(chunk) == 0b10 and clear_column(chunk, "key") == ["k", None]
    assert chunk.unreadable == 0b11 and chunk.why_unreadable == "cannot be decrypted: key 7 is not there"


# ------------------------------------------------------------------------------------------------------- extract


@given(st.lists(drafts, min_size=1, max_size=12), st.data())
def test_extracted_messages_keep_all_they_had_and_what_their_place_said(
    given: list[Draft], data: st.DataObject
) -> None:
    blocks = [block for draft in given for block in blocks_of([draft], "00-ab-cd-01").blocks]
    chunk = stored(blocks, base=500)[0]
    bits = data.draw(st.integers(1, (1 << chunk.count) - 1))
    moved = extract(chunk, bits, {}, partition=3)
    found = [d for other in stored(moved) for d in as_drafts(other)]
    source = as_drafts(chunk)
    for n, draft in zip(indexes(bits), found, strict=True):
        assert draft.body == source[n].body and draft.kind == source[n].kind
        place = {"id": f"3-{500 + n:012x}", "at": TIME_MS}
        assert draft.columns == place | (source[n].columns or {})


def test_an_extracted_message_gets_what_is_annexed_and_loses_what_is_taken_away() -> None:
    died = {"reason": "expired", "at": 5, "attempts": 1, "history": []}
    given = [Draft(KIND_JSON, b"%d" % n, {"key": "k"}, expires_ms=9 * n) for n in range(3)]
    dead = one(extract(one(blocks_of(given).blocks), 0b110, {1: {"dead": died}, 2: {"late": True}}, partition=0))
    assert clear_column(dead, "dead") == [died, None] and clear_column(dead, "late") == [None, True]
    assert clear_column(dead, "at") == [TIME_MS] * 2
    (back,) = extract(dead, 0b11, {0: {"dead": None, "exp": 0, "at": 7}}, partition=0)
    assert clear_column(one([back]), "dead") is None and clear_column(one([back]), "at") == [7, TIME_MS]
    assert clear_column(one([back]), "exp") == [0, 18] and back.traits is not None
    assert list(back.traits.expires or []) == [0, 18] and list(back.traits.keys or []) == ["k", "k"]
    assert clear_column(one([back]), "id") == ["0-000000000001", "0-000000000002"]


def test_holes_are_never_extracted() -> None:
    chunk = one([punch(block, 0b01) for block in plain_blocks(KIND_JSON, [b"1", b"2"])])
    assert [d.body for d in as_drafts(one(extract(chunk, 0b11, {}, partition=0)))] == [b"2"]
    assert extract(chunk, 0b01, {}, partition=0) == []


def test_a_whole_chunk_moves_in_blocks_within_the_limits() -> None:
    chunk = one(plain_blocks(KIND_BYTES, [b"x" * 10] * 200))
    moved = extract(chunk, (1 << 200) - 1, {0: {"dead": {"reason": "overflow"}}}, partition=0)
    assert sum(b.count for b in moved) == 200 and max(b.count for b in moved) <= BLOCK_MESSAGES_MAX
