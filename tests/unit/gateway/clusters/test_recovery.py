"""What of a quarantined chunk is published again, and when that is in doubt."""

from __future__ import annotations

from base64 import b64encode

import msgspec

from backend_store.core.log.block import KIND_BYTES, KIND_JSON, Columns, column_blocks
from backend_store.core.log.chunk import ENTRY_CHUNK, decode_chunk, encode_entry
from backend_store.core.log.sublogs import SCHEDULED
from backend_store.model import Epoch, Offset
from backend_store.shard.quarantine import Kept
from gateway.clusters.recovery import as_given, is_in_doubt

NOW_MS = 1_000_000
WINDOW_MS = 300_000


def stored(**more: list[object]) -> bytes:
    columns = Columns(bytes([KIND_JSON, KIND_BYTES]), [b'{"a":1}', b"\x00raw"], dict(more))
    [block] = column_blocks(columns).blocks
    data, _ = encode_entry(
        ENTRY_CHUNK, [block.data], seed=7, epoch=Epoch(1), offset=Offset(3), time_ms=5, count=2, shelf=SCHEDULED + 2
    )
    return data


def kept(data: bytes = b"", *, begun_ms: int = 0, is_in_doubt: bool = False) -> Kept:
    dues = ((NOW_MS + 500, 0b01),)
    return Kept(
        1, "t", "q", 7, 0, 7, SCHEDULED + 2, 3, b"\3", data, dues, 5, 6, is_in_doubt=is_in_doubt, begun_ms=begun_ms
    )


def test_a_message_is_published_as_its_producer_gave_it() -> None:
    data = stored(
        id=["mine", None],
        key=["k", None],
        headers=[{"h": "1"}, None],
        content_type=["text/x", None],
        exp=[NOW_MS + 2_000, 0],
        ts=[1_700_000_000_123_456, None],
        pr=["p", None],
        ps=[9, None],
    )
    chunk = decode_chunk(data, seed=7)
    first, second = (as_given(chunk, kept(data), number, NOW_MS) for number in (0, 1))
    assert bytes(first.body) == b'{"a":1}' and first.body_base64 is None
    assert (first.id, first.key, first.headers, first.content_type) == ("mine", "k", {"h": "1"}, "text/x")
    assert (first.priority, first.delay_ms, first.ttl_ms) == (2, 500, 1_500), "a life begins when it is due"
    assert (first.producer, first.producer_seq, first.timestamp) == ("p", 9, "2023-11-14T22:13:20.123456Z")
    assert second == msgspec.structs.replace(type(second)(), body_base64=b64encode(b"\x00raw").decode(), priority=2), (
        "what was named by its place has no name of its own"
    )


def test_what_was_begun_long_ago_is_in_doubt() -> None:
    def doubt(one: Kept) -> bool:
        return is_in_doubt(one, window_ms=WINDOW_MS, wall_ms=NOW_MS)

    assert not doubt(kept()) and doubt(kept(is_in_doubt=True))
    assert not doubt(kept(begun_ms=NOW_MS - WINDOW_MS // 2))
    assert doubt(kept(begun_ms=NOW_MS - WINDOW_MS // 2 - 1))
    assert not doubt(kept(begun_ms=NOW_MS + WINDOW_MS // 2))
    assert doubt(kept(begun_ms=NOW_MS + WINDOW_MS // 2 + 1)), "the clock was set back: nobody knows when that was"
