"""The cipher: what was sealed comes back whole, or not at all."""

from __future__ import annotations

import os
import threading
from typing import Any

import msgspec
import pytest
from cryptography.exceptions import InvalidTag
from hypothesis import given
from hypothesis import strategies as st

from backend_store.client import (
    BLOCK_HEAD,
    KIND_JSON,
    CannotOpen,
    Columns,
    Draft,
    NumberedNames,
    SealedBlock,
    blocks_of,
    column_blocks,
    plain_blocks,
    unpack,
)
from backend_store.core.log.block import pack
from backend_store.core.log.chunk import Chunk, clear_column, extract, holes, moved_whole, punch
from backend_store.core.partitions.routing import cut
from backend_store.model import Block, QueueConfig, Stamp, Unavailable
from gateway.encryption.cipher import (
    DATA_KEY_BYTES,
    NONCE_BYTES,
    NONCES_DRAWN,
    SEAL_BYTES,
    BlockCipher,
    Counts,
    Nonces,
    QueueSeal,
)
from tests.support.sealed import a_definition, a_seal
from tests.unit.backend_store.core.log.test_chunk import as_drafts, stored
from tests.unit.backend_store.core.test_chunk_columns import stamped_drafts

FULL = Draft(
    KIND_JSON,
    b'"body"',
    {
        "id": "given",
        "key": "k",
        "content_type": "application/x-secret",
        "headers": {"header": "value"},
        "reply_to": "answers",
        "correlation_id": "corr",
    },
    stamp=Stamp(7_000_001, "prod", 3),
)


def cipher(key_id: int = 1, *, tenant: str = "default", uid: int = 1) -> BlockCipher:
    secret = bytes([key_id]) * DATA_KEY_BYTES
    return BlockCipher(secret, tenant=tenant, uid=uid, key_id=key_id, created_at_ms=0, reserved=1 << 20)


def with_keys(*key_ids: int) -> QueueSeal:
    seal = a_seal()
    for key_id in key_ids:
        seal.add(cipher(key_id))
    return seal


def parts(block: Block) -> SealedBlock:
    flags, key_id, messages, clear_size, _ = BLOCK_HEAD.unpack_from(block.data)
    at = BLOCK_HEAD.size + clear_size
    clear = unpack(block.data[BLOCK_HEAD.size : at]) if clear_size else {}
    return SealedBlock(flags, key_id, messages, clear, block.data[at:])


def chunk_of(blocks: list[Block], seal: QueueSeal | None) -> Chunk:
    (chunk,) = stored(blocks)
    chunk.seal = seal
    return chunk


@given(st.lists(stamped_drafts, min_size=1, max_size=40))
def test_what_was_sealed_is_read_as_if_it_had_not_been(drafts: list[Draft]) -> None:
    seal, blocks = with_keys(1), blocks_of(drafts).blocks
    sealed = seal.seal(blocks)
    assert [(b.count, b.priority, b.due_ms, b.traits, b.slots) for b in sealed] == [
        (b.count, b.priority, b.due_ms, b.traits, b.slots) for b in blocks
    ]
    for plain, hidden in zip(blocks, sealed, strict=True):
        assert len(hidden.data) == len(plain.data) + SEAL_BYTES
        shown, opened = chunk_of([plain], None), chunk_of([hidden], seal)
        assert opened.messages == shown.messages and opened.unreadable == 0
        assert opened.is_sealed and not shown.is_sealed


def test_only_what_routes_a_message_stays_readable() -> None:
    (sealed,) = with_keys(1).seal(blocks_of([FULL]).blocks)
    for secret in (b"body", b"x-secret", b"header", b"value", b"answers", b"corr"):
        assert secret not in sealed.data
    chunk = chunk_of([sealed], None)
    assert (clear_column(chunk, "id"), clear_column(chunk, "key")) == (["given"], ["k"])


def test_every_changed_byte_is_noticed_but_those_that_the_store_writes() -> None:
    (sealed,) = with_keys(1).seal(blocks_of([FULL, FULL]).blocks)
    wanted = chunk_of([sealed], with_keys(1)).messages
    for at in range(len(sealed.data)):
        for bit in (0x01, 0x80):
            data = bytearray(sealed.data)
            data[at] ^= bit
            try:
                found = parts(Block(bytes(data), 2))
                plain = with_keys(1, bit).open(found)
            except (CannotOpen, ValueError, AttributeError, TypeError):
                continue  # noticed, or no block any more
            # What is left: the sizes of the halves, which the store's checksum guards, and the flag of a clear one.
            assert plain == with_keys(1).open(parts(sealed)), f"byte {at} was changed unseen"
            assert at == 0 or 7 <= at < BLOCK_HEAD.size, f"byte {at} was changed unseen"
    assert chunk_of([sealed], with_keys(1)).messages == wanted


@pytest.mark.parametrize("name", ["id", "key", "ts", "pr", "ps"])
def test_messages_do_not_open_under_other_names(name: str) -> None:
    mine = FULL._replace(columns={**(FULL.columns or {}), "id": "mine", "key": "mine"}, stamp=Stamp(9, "mine", 9))
    seal = with_keys(1)
    one, other = seal.seal(blocks_of([FULL]).blocks + blocks_of([mine]).blocks)
    swapped = {**parts(one).clear, name: parts(other).clear[name]}
    with pytest.raises(CannotOpen, match="has been altered"):
        seal.open(parts(one)._replace(clear=swapped))
    without = {key: value for key, value in parts(one).clear.items() if key != name}
    with pytest.raises(CannotOpen, match="has been altered"):
        seal.open(parts(one)._replace(clear=without))


@pytest.mark.parametrize(
    "other", [cipher(1, tenant="other"), cipher(1, uid=2), cipher(2)], ids=["tenant", "queue", "key"]
)
def test_a_block_opens_only_for_its_tenant_queue_and_key(other: BlockCipher) -> None:
    block = parts(cipher(1).seal(plain_blocks(KIND_JSON, [b"1"])[0]))
    assert cipher(1).open(block)
    with pytest.raises(InvalidTag):
        other.open(block)


def test_what_becomes_of_a_message_is_the_stores_to_write() -> None:
    seal = with_keys(1)
    (sealed,) = seal.seal(blocks_of([FULL, FULL, FULL]).blocks)
    chunk = chunk_of([punch(sealed, 0b010)], seal)
    assert holes(chunk) == 0b010 and not chunk.unreadable
    assert [draft.body for draft in as_drafts(chunk)] == [b'"body"'] * 3


def test_a_block_without_a_clear_part_gets_one_and_still_opens() -> None:
    seal = with_keys(1)
    (sealed,) = seal.seal(plain_blocks(KIND_JSON, [b"1", b"2"]))
    chunk = chunk_of([punch(sealed, 0b01)], seal)
    assert chunk.messages.bodies == [b"1", b"2"] and not chunk.unreadable


def test_older_keys_open_and_the_newest_seals() -> None:
    seal = with_keys(1)
    (old,) = seal.seal(plain_blocks(KIND_JSON, [b"1"]))
    seal.add(cipher(5))
    (new,) = seal.seal(plain_blocks(KIND_JSON, [b"2"]))
    assert (parts(old).key_id, parts(new).key_id) == (1, 5)
    assert chunk_of([old, new], seal).messages.bodies == [b"1", b"2"]


def test_one_block_that_does_not_open_leaves_the_others_of_its_chunk_readable() -> None:
    seal = with_keys(1)
    seal.definition = msgspec.structs.replace(seal.definition, was_plain=True)
    good, bad, plain = (
        *seal.seal(plain_blocks(KIND_JSON, [b"1"]) + plain_blocks(KIND_JSON, [b"2"] * 3)),
        *plain_blocks(KIND_JSON, [b"3"]),
    )
    bad = Block(bad.data[:-1] + bytes([bad.data[-1] ^ 1]), 3)
    chunk = chunk_of([good, bad, plain], seal)
    assert chunk.messages.bodies == [b"1", b"", b"", b"", b"3"] and chunk.unreadable == 0b01110
    assert "has been altered" in chunk.why_unreadable


def test_what_lies_in_the_clear_is_refused_where_everything_was_sealed() -> None:
    seal = with_keys(1)
    (good,) = seal.seal(plain_blocks(KIND_JSON, [b"1"]))
    put = blocks_of([Draft(KIND_JSON, b"2", {"id": "m2", "headers": {"a": "b"}, "reply_to": "theirs"})]).blocks
    chunk = chunk_of([good, *put], seal)
    assert chunk.messages.bodies == [b"1", b""] and chunk.unreadable == 0b10
    assert chunk.why_unreadable.startswith("cannot be decrypted: the message is stored unencrypted")
    columns = chunk.messages.columns
    assert columns is not None and columns["id"] == [None, "m2"] and not columns.keys() & {"headers", "reply_to"}
    for config, was_plain in ((QueueConfig(), True), (QueueConfig(encrypted=False), False)):
        seal.definition = msgspec.structs.replace(seal.definition, config=config, was_plain=was_plain)
        assert chunk_of([good, *put], seal).messages.bodies == [b"1", b"2"]


def test_nothing_is_added_to_the_readable_part() -> None:
    seal = with_keys(1)
    (sealed,) = seal.seal(blocks_of([Draft(KIND_JSON, b"1", {"id": "m1"})]).blocks)
    flags, key_id, count, size, rest = BLOCK_HEAD.unpack_from(sealed.data)
    end = BLOCK_HEAD.size + size
    for name, value in (("headers", {"a": "b"}), ("reply_to", "theirs"), ("content_type", "x/y"), ("kind", b"\1")):
        clear = pack({**unpack(sealed.data[BLOCK_HEAD.size : end]), name: value})
        data = BLOCK_HEAD.pack(flags, key_id, count, len(clear), rest) + clear + sealed.data[end:]
        chunk = chunk_of([Block(data, 1)], seal)
        assert chunk.unreadable == 1 and "the unencrypted part contains fields that must be" in chunk.why_unreadable, (
            name
        )
    late = pack({**unpack(sealed.data[BLOCK_HEAD.size : end]), "late": True})
    data = BLOCK_HEAD.pack(flags, key_id, count, len(late), rest) + late + sealed.data[end:]
    assert chunk_of([Block(data, 1)], seal).messages.bodies == [b"1"]


def test_what_does_not_open_moves_in_its_whole_block_and_opens_when_its_key_is_back() -> None:
    (sealed,) = with_keys(1).seal(blocks_of([FULL, Draft(KIND_JSON, b"2", None), FULL]).blocks)
    lost = chunk_of([sealed], a_seal())
    assert lost.unreadable == 0b111 and "key 1 does not belong to this queue" in lost.why_unreadable
    (copy,) = moved_whole(lost, 0b010, {1: {"dead": {"reason": "undeliverable", "at": 5}, "exp": None}}, partition=0)
    chunk = chunk_of([copy], with_keys(1))
    assert not chunk.unreadable and holes(chunk) == 0b101
    assert chunk.messages.bodies[1] == b"2" and (clear_column(chunk, "id") or [])[1] == f"0-{lost.base + 1:012x}"
    assert (clear_column(chunk, "dead") or [])[1]["reason"] == "undeliverable"
    (again,) = moved_whole(chunk_of([copy], a_seal()), 0b010, {}, partition=0)
    assert not chunk_of([again], with_keys(1)).unreadable, "it may move more than once"


@given(st.lists(stamped_drafts, min_size=1, max_size=12), st.data())
def test_a_whole_copy_of_any_block_has_the_messages_that_an_extract_has(
    drafts: list[Draft], data: st.DataObject
) -> None:
    seal = with_keys(1)
    for block in blocks_of(drafts).blocks:
        chunk = chunk_of(seal.seal([block]), seal)
        bits = data.draw(st.integers(1, (1 << chunk.count) - 1))
        copies = moved_whole(chunk, bits, {}, partition=3)
        moved = [chunk_of([copy], seal) for copy in copies]
        assert not any(one.unreadable for one in moved)
        found = [d for one in moved for n, d in enumerate(as_drafts(one)) if not holes(one) >> n & 1]
        wanted = [d for b in extract(chunk, bits, {}, partition=3) for d in as_drafts(chunk_of([b], None))]
        assert [said(draft) for draft in found] == [said(draft) for draft in wanted]


def said(draft: Draft) -> tuple[int, bytes, dict[str, Any]]:
    """What a message has, without the columns that say nothing of it."""
    columns = draft.columns or {}
    return draft.kind, draft.body, {name: value for name, value in columns.items() if value}


def test_a_queue_without_a_key_takes_nothing_for_now_and_asks_for_one() -> None:
    wanted: list[QueueSeal] = []
    seal = QueueSeal(a_definition(), Counts(), wanted.append)
    with pytest.raises(Unavailable) as refused:
        seal.seal(plain_blocks(KIND_JSON, [b"1"]))
    assert refused.value.retry_after_ms and wanted == [seal]


def test_no_two_blocks_have_one_nonce() -> None:
    seal, (block,) = with_keys(1), plain_blocks(KIND_JSON, [b"1"])
    nonces = {parts(one).sealed[:12] for one in seal.seal([block] * 500)}
    assert len(nonces) == 500


def test_nonces_are_what_the_system_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = bytes(range(NONCE_BYTES)) * NONCES_DRAWN
    monkeypatch.setattr("gateway.encryption.cipher.os.urandom", lambda size: numbers[:size])
    monkeypatch.setattr("gateway.encryption.cipher._fresh", Nonces())
    sealed = cipher().seal(plain_blocks(KIND_JSON, [b"1"])[0])
    assert parts(sealed).sealed[:NONCE_BYTES] == bytes(range(NONCE_BYTES))


def named_block(count: int) -> Block:
    """A block whose ids are a prefix and numbers."""
    columns = Columns(KIND_JSON, [b"%d" % n for n in range(count)], {"id": NumberedNames("called-", count)})
    (block,) = column_blocks(columns).blocks
    return block


@pytest.mark.parametrize("count", [1, 2, 64])
def test_numbered_names_are_bound_and_open_wherever_the_block_goes(count: int) -> None:
    seal = with_keys(1)
    names = [f"called-{n:03d}" for n in range(count)]
    (sealed,) = seal.seal([named_block(count)])
    assert len(sealed.data) < len(b"called-") + 200 + 40 * count
    chunk = chunk_of([sealed], seal)
    assert clear_column(chunk, "id") == names and chunk.unreadable == 0
    (copy,) = moved_whole(chunk_of([sealed], None), 1, {0: {"dead": {"reason": "undeliverable", "at": 5}}}, partition=0)
    moved = chunk_of([copy], seal)
    assert moved.messages.bodies[0] == b"0" and moved.unreadable == 0
    assert clear_column(moved, "id") == names
    part = cut(sealed, [count - 1], seal)
    assert clear_column(chunk_of([part], seal), "id") == names[-1:]
    forged = Block(sealed.data.replace(b"called-", b"forged-"), count)
    assert chunk_of([forged], with_keys(1, 2)).unreadable


def test_no_nonce_comes_twice_in_any_thread() -> None:
    nonces, found = Nonces(), []

    def draw() -> None:
        found.extend([nonces() for _ in range(20 * NONCES_DRAWN)])

    threads = [threading.Thread(target=draw) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == len(found) == 80 * NONCES_DRAWN
    assert {len(nonce) for nonce in found} == {NONCE_BYTES}


def test_a_child_of_this_process_has_nonces_of_its_own() -> None:
    nonces = Nonces()
    nonces()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writing, nonces())
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    childs = os.read(reading, NONCE_BYTES)
    os.close(reading)
    os.close(writing)
    assert len(childs) == NONCE_BYTES
    assert childs not in [nonces() for _ in range(NONCES_DRAWN)]
