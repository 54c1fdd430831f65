"""Records, rows and runs of ids: their layout, their order, and how several runs become one."""

from array import array
from hashlib import blake2b

import pytest

from backend_store.core.dedupe.id_runs import (
    RECORD,
    ROW_RECORDS_MAX,
    Build,
    Freeze,
    Known,
    Merge,
    Run,
    arrival_row,
    decode_manifest,
    encode_manifest,
    find,
    hashes_of,
    pack_arrivals,
    plan_merge,
    read_arrivals,
    records_of,
)


def hash_of(number: int) -> bytes:
    return blake2b(b"%d" % number, digest_size=16).digest()


def record(number: int, time_ms: int = 1000) -> bytes:
    return RECORD.pack(hash_of(number), ~time_ms, number)


def run(number: int, level: int = 0) -> Run:
    return Run(number, level, count=10, oldest_ms=number * 10, newest_ms=number * 10 + 9)


def built(build: Build, feeds: dict[int, list[list[bytes]]] | None = None) -> list[list[bytes]]:
    """The rows of the run; `feeds`: the rows of each run that is merged, given one at a time."""
    rows: list[list[bytes]] = []
    while not build.source.is_done:
        for stream in build.source.hungry():
            assert feeds is not None
            waiting = feeds[stream.run.number]
            given = [waiting.pop(0)] if waiting else []
            stream.feed([(part[-1], b"".join(part)) for part in given], is_last=not given)
        rows += build.cut(build.source.take())
    return rows


def frozen(numbers: range, time_ms: int = 1000) -> list[list[bytes]]:
    records = [record(number, time_ms) for number in numbers]
    source = Freeze(records[at : at + 64] for at in range(0, len(records), 64))
    return built(Build(source, number=0, level=0, oldest_ms=time_ms, newest_ms=time_ms))


# ---------------------------------------------------------------------------------------------------------- layout


def test_the_layout_of_a_record_and_of_an_arrival_row_never_changes() -> None:
    one = bytes(range(16))
    assert RECORD.pack(one, ~1_700_000_000_000, 7) == one + bytes.fromhex("fffffe74301a97ff0000000000000007")
    group = pack_arrivals(1_700_000_000_000, one, array("Q", [258]))
    assert arrival_row([group]) == (
        bytes.fromhex("010000018bcfe5680000000001") + one + bytes.fromhex("0201000000000000")
    )
    assert encode_manifest([Run(3, 1, 40, 5, 9)]) == bytes.fromhex("920191950301280509")


def test_an_arrival_row_gives_back_its_groups() -> None:
    first, second = [hash_of(1), hash_of(2)], [hash_of(3)]
    row = arrival_row(
        [
            pack_arrivals(10, b"".join(first), array("Q", [7, 8])),
            pack_arrivals(20, b"".join(second), array("Q", [2**63])),
        ]
    )
    assert list(read_arrivals(row)) == [(10, first, array("Q", [7, 8])), (20, second, array("Q", [2**63]))]


def test_rows_of_another_version_are_refused() -> None:
    with pytest.raises(ValueError, match="arrival row of version 2: this program reads version 1"):
        list(read_arrivals(b"\x02"))
    with pytest.raises(ValueError, match="id runs of version 2"):
        decode_manifest(bytes.fromhex("920290"))


def test_a_row_of_records_gives_back_records_and_hashes() -> None:
    row = record(1) + record(2)
    assert records_of(row) == (record(1), record(2))
    assert hashes_of(row) == (hash_of(1), hash_of(2))


# ---------------------------------------------------------------------------------------------------------- finding


def test_the_newest_message_of_a_hash_is_found_first() -> None:
    one = hash_of(1)
    row = b"".join(sorted(RECORD.pack(one, ~time_ms, offset) for time_ms, offset in ((0, 5), (1, 6), (300, 7))))
    assert find(row, one) == Known(offset=7, time_ms=300)


def test_a_hash_is_not_found_across_the_border_of_two_records() -> None:
    row = record(1) + record(2)
    assert find(row, row[20:36]) is None
    assert find(row, hash_of(3)) is None


def test_a_hash_is_found_behind_the_same_bytes_at_another_place() -> None:
    wanted = hash_of(1)
    # The time and the offset of the first record spell the hash that is looked for.
    row = bytes(16) + wanted + RECORD.pack(wanted, ~50, 4)
    assert find(row, wanted) == Known(offset=4, time_ms=50)


# ------------------------------------------------------------------------------------------------ runs in the making


def test_a_frozen_dict_becomes_sorted_rows_that_are_full_but_the_last() -> None:
    rows = frozen(range(1000))
    assert [len(part) for part in rows] == [ROW_RECORDS_MAX] * 7 + [1000 - 7 * ROW_RECORDS_MAX]
    assert [one for part in rows for one in part] == sorted(record(number) for number in range(1000))


def test_a_dict_whose_ids_begin_alike_is_frozen_too() -> None:
    records = [RECORD.pack(b"same" + hash_of(n)[:12], ~1, n) for n in range(300)]
    source = Freeze([records[:100], records[100:]])
    rows = built(Build(source, number=0, level=0, oldest_ms=1, newest_ms=1))
    assert sum(map(len, rows)) == 300 and [len(part) for part in rows[:-1]] == [ROW_RECORDS_MAX] * 2


def test_merged_runs_hold_what_each_held_in_order() -> None:
    numbers = {0: range(500), 1: range(500, 507), 2: range(507, 2000)}
    build = Build(Merge([run(0), run(1), run(2)]), number=3, level=1, oldest_ms=0, newest_ms=29)
    rows = built(build, {number: frozen(span) for number, span in numbers.items()})
    assert [one for part in rows for one in part] == sorted(record(number) for number in range(2000))
    assert [len(part) for part in rows[:-1]] == [ROW_RECORDS_MAX] * 15
    assert build.run() == Run(3, 1, count=2000, oldest_ms=0, newest_ms=29)


def test_a_merge_keeps_every_message_of_a_hash_the_newest_first() -> None:
    build = Build(Merge([run(0), run(1)]), number=2, level=1, oldest_ms=0, newest_ms=19)
    rows = built(build, {0: frozen(range(5), time_ms=1), 1: frozen(range(5), time_ms=2)})
    assert len(rows) == 1 and len(rows[0]) == 10
    assert [find(b"".join(rows[0]), hash_of(number)) for number in range(5)] == [Known(n, 2) for n in range(5)]


# ------------------------------------------------------------------------------------------------------------- plans


def test_the_oldest_neighbours_of_a_level_are_merged_once_there_are_enough() -> None:
    runs = [run(9, 1), *map(run, range(5))]
    assert plan_merge(runs, 0, count=6, avoid=()) == []
    assert plan_merge(runs, 0, count=4, avoid=()) == [run(0), run(1), run(2), run(3)]
    assert plan_merge(runs, 1, count=2, avoid=()) == []


def test_runs_on_both_sides_of_another_are_no_neighbours() -> None:
    runs = [*map(run, range(5))]
    assert plan_merge(runs, 0, count=3, avoid={1}) == [run(2), run(3), run(4)]
    assert plan_merge(runs, 0, count=3, avoid={2}) == []
