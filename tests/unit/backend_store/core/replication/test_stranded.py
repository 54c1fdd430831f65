"""What of a cut-off tail is kept, asked of the core alone."""

from __future__ import annotations

from backend_store.core.log.block import KIND_JSON, Columns, column_blocks
from backend_store.core.log.chunk import ENTRY_CHUNK, encode_entry
from backend_store.core.log.records import EpochStart
from backend_store.core.log.sublogs import DEAD, MAIN, SCHEDULED, VIEW_DEAD, VIEW_MAIN
from backend_store.core.replication.stranded import Happened, Sifter, Stranded, Written, where
from backend_store.model import Epoch, Offset

REPLICA = 7


def chunk(base: int, *names: str, shelf: int = MAIN, at: int | None = None) -> bytes:
    columns = Columns(
        KIND_JSON, [b"1"] * len(names), {"id": list(names), **({} if at is None else {"at": [at] * len(names)})}
    )
    [block] = column_blocks(columns).blocks
    data, _ = encode_entry(
        ENTRY_CHUNK,
        [block.data],
        seed=REPLICA,
        epoch=Epoch(1),
        offset=Offset(base),
        time_ms=5,
        count=len(names),
        shelf=shelf,
    )
    return data


def happened(*chunks: Written, settled: dict[tuple[int, int], int] | None = None, floor: int = 0) -> Happened:
    return Happened(REPLICA, 0, chunks, settled or {}, floors={VIEW_MAIN: floor} if floor else {})


def wrote(base: int, *names: str) -> Written:
    return Written(MAIN, base, chunk(base, *names), is_new=True)


def kept(*tail: Happened) -> list[tuple[int, int]]:
    """(base, bits) of what is kept of a tail given in the order in which it happened."""
    sifter = Sifter()
    return [(one.base, one.bits) for entry in reversed(tail) for one in sifter.take(entry)]


def test_messages_that_were_published_in_the_tail_are_kept() -> None:
    assert kept(happened(wrote(3, "a", "b")), happened(wrote(5, "c"))) == [(5, 0b1), (3, 0b11)]


def test_messages_that_were_acked_in_the_tail_are_done() -> None:
    published = happened(wrote(3, "a", "b", "c"))
    assert kept(published, happened(settled={(VIEW_MAIN, 3): 0b010})) == [(3, 0b101)]
    last_word = happened(settled={(VIEW_MAIN, 3): 0b011})
    assert kept(published, happened(settled={(VIEW_MAIN, 3): 0b010}), last_word) == [(3, 0b100)]


def test_a_chunk_that_was_deleted_or_purged_in_the_tail_is_done() -> None:
    gone = Written(MAIN, 3, None, is_new=False)
    assert kept(happened(wrote(3, "a")), happened(gone)) == []
    assert kept(happened(wrote(3, "a", "b")), happened(floor=5)) == []
    assert kept(happened(wrote(3, "a", "b")), happened(floor=4)) == [(3, 0b11)]


def test_a_chunk_that_was_there_before_the_tail_is_no_part_of_it() -> None:
    assert kept(happened(Written(MAIN, 3, chunk(3, "a"), is_new=False))) == []


def test_a_message_that_died_in_the_tail_is_kept_if_it_was_published_there() -> None:
    dead = Written(DEAD, 9, chunk(9, "a", "older", shelf=DEAD, at=5), is_new=True)
    died = happened(Written(MAIN, 3, None, is_new=False), dead)
    assert kept(happened(wrote(3, "a", "b")), died) == [(3, 0b01)], "b was acked; `older` lies where it was"
    redriven = happened(settled={(VIEW_DEAD, 9): 0b11})
    assert kept(happened(wrote(3, "a", "b")), died, redriven) == []


def test_a_scheduled_message_keeps_its_time() -> None:
    scheduled = Written(SCHEDULED, 3, chunk(3, "a", shelf=SCHEDULED), is_new=True)
    tail = Happened(REPLICA, 0, (scheduled,), dues={3: [(900, 0b1)]})
    assert Sifter().take(tail) == [Stranded(SCHEDULED, 3, 0b1, scheduled.data or b"", ((900, 0b1),))]


def test_a_chunk_that_cannot_be_read_is_kept() -> None:
    data = bytearray(chunk(3, "a"))
    data[-1] ^= 1
    assert kept(happened(Written(MAIN, 3, bytes(data), is_new=True))) == [(3, 1)]


def test_an_entry_is_in_another_log_if_that_has_its_epoch_there() -> None:
    epochs = [EpochStart(Epoch(2), Offset(10)), EpochStart(Epoch(5), Offset(20))]
    assert where(Epoch(2), 12, epochs, 30) == "there"
    assert where(Epoch(4), 22, epochs, 30) == "lacked"
    assert where(Epoch(3), 12, epochs, 30) == "lacked"
    assert where(Epoch(1), 5, epochs, 30) == "unknown", "what lies so far back is forgotten"
    assert where(Epoch(4), 35, epochs, 30) == "lacked", "epochs never go back along a log"
    assert where(Epoch(5), 35, epochs, 30) == "unknown"
    assert where(Epoch(5), 0, [], 0) == "unknown"
