"""The answer to a publish: one row a message, in the order of the call, whatever became of each."""

from __future__ import annotations

import json
from typing import Any, Literal

import msgspec
import pytest

from backend_store.core.dedupe.message_ids import message_id
from backend_store.core.dedupe.numbered_ids import NumberedNames
from backend_store.core.log.chunk import KIND_JSON, Columns, Draft, blocks_of, column_blocks, plain_blocks
from backend_store.model import DedupeFull, Offset, Original, Published, PushqError, QueueConfig, QueueFull
from push.encoding.deliveries import array_header
from push.encoding.numbered_names import BY_COLUMNS_FROM, numbered_rows
from push.encoding.publish_reply import published_messages_json, published_ok, refusal
from push.ports import Encoding, Prepared

ENCODINGS: list[Encoding] = ["json", "msgpack"]
PLAIN = QueueConfig()


def read(data: bytes, encoding: Encoding) -> Any:
    return json.loads(data) if encoding == "json" else msgspec.msgpack.decode(data)


def rows(published: Published, prepared: Prepared) -> list[dict[str, Any]]:
    """The rows, the same in both encodings and over HTTP."""
    found: list[dict[str, Any]] = json.loads(published_messages_json(published, prepared))
    for encoding in ENCODINGS:
        assert read(published_ok(1, published, prepared, PLAIN, encoding), encoding)["messages"] == found
    return found


def three(ids: list[str | None] | None = None) -> Prepared:
    return Prepared(plain_blocks(KIND_JSON, [b"1"] * 3), ids)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("request_id", [0, -5, 2**63 - 1, "", "%s", 'x"%d\\', "é"])
@pytest.mark.parametrize("ids", [None, ["a", None, "%"]])
@pytest.mark.parametrize(("partition", "fsynced"), [(0, True), (7, False), (12_345, True)])
def test_a_publish_is_answered_with_the_place_of_each_message(
    encoding: Encoding, request_id: int | str, ids: list[str | None] | None, partition: int, fsynced: bool
) -> None:
    published = Published(partition, Offset(2**40), 3, fsynced=fsynced)
    names = [given or f"{partition}-{2**40 + n:012x}" for n, given in enumerate(ids or [None] * 3)]
    wanted = [
        {"id": name, "seq": 2**40 + n, "partition": partition, "duplicate": False} for n, name in enumerate(names)
    ]
    frame = read(published_ok(request_id, published, three(ids), PLAIN, encoding), encoding)
    assert frame == {
        "type": "ok",
        "id": request_id,
        "messages": wanted,
        "durability": {"fsynced": fsynced, "replicas": 1},
        "sequencing": "arrival",
        "dedupe": "none",
    }
    assert rows(published, three(ids)) == wanted


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("sequencing", ["arrival", "producer", "clock"])
@pytest.mark.parametrize("dedupe", ["none", "id", "content"])
def test_an_answer_says_what_the_next_messages_to_the_queue_need(
    encoding: Encoding,
    sequencing: Literal["arrival", "producer", "clock"],
    dedupe: Literal["none", "id", "content"],
) -> None:
    config = QueueConfig(sequencing=sequencing, dedupe=dedupe)
    frame = read(published_ok(1, Published(0, Offset(9), 3), three(), config, encoding), encoding)
    assert (frame["sequencing"], frame["dedupe"]) == (sequencing, dedupe)


@pytest.mark.parametrize("ids", [None, ["a", "b", "c", None]])
def test_messages_of_several_priorities_are_answered_in_the_order_of_the_call(ids: list[str | None] | None) -> None:
    given = [Draft(KIND_JSON, b"%d" % n, None, priority=n % 2) for n in range(4)]
    blocks, order = blocks_of(given)
    published = Published(0, Offset(100), 4, bases=(100, 50))
    found = rows(published, Prepared(blocks, ids, order))
    assert [row["seq"] for row in found] == [100, 50, 101, 51]
    assert [row["id"] for row in found] == [
        (ids or [None] * 4)[n] or f"0-{seq:012x}" for n, seq in enumerate([100, 50, 101, 51])
    ]


def test_a_repeated_message_is_answered_with_the_place_of_the_first() -> None:
    published = Published(0, Offset(9), 3, others={1: Original(4), 2: Original(5)})
    found = rows(published, three([None, "b", None]))
    assert [(r["id"], r["seq"], r["duplicate"]) for r in found] == [
        ("0-000000000009", 9, False),
        ("b", 4, True),
        ("0-000000000005", 5, True),
    ]


def test_of_a_repeated_number_only_that_it_came_before_may_be_known() -> None:
    published = Published(0, Offset(9), 3, others={0: Original(-1), 1: Original(-1)})
    found = rows(published, three(["a", None, None]))
    assert [(r["id"], r["seq"], r["duplicate"]) for r in found[:2]] == [("a", None, True), (None, None, True)]


def test_a_refused_message_has_its_problem_in_place_of_a_seq() -> None:
    published = Published(0, Offset(9), 3, others={1: QueueFull("10 of 10 messages")})
    first, second, _ = rows(published, three(["a", "b", "c"]))
    assert "error" not in first and "seq" not in second
    assert (second["id"], second["duplicate"], second["partition"]) == ("b", False, 0)
    assert (second["error"]["code"], second["error"]["status"]) == ("queue-full", 507)


def test_exceptions_are_counted_as_the_blocks_stand_and_told_as_the_call_stood() -> None:
    given = [Draft(KIND_JSON, b"%d" % n, None, priority=n % 2) for n in range(4)]
    blocks, order = blocks_of(given)
    published = Published(0, Offset(100), 4, bases=(100, 50), others={1: Original(3)})
    found = rows(published, Prepared(blocks, None, order))
    assert [(row["seq"], row["duplicate"]) for row in found] == [(100, False), (50, False), (3, True), (51, False)]


# A call over several partitions has the place of each message in `places`, in the order of its blocks.


@pytest.mark.parametrize("ids", [None, ["a", None, "%s"]])
def test_a_call_over_several_partitions_is_answered_with_the_place_of_each_message(
    ids: list[str | None] | None,
) -> None:
    places = [(3, 2**40), (0, 7), (63, 0)]
    found = rows(Published(3, Offset(2**40), 3, places=places), three(ids))
    names = [given or f"{p}-{n:012x}" for given, (p, n) in zip(ids or [None] * 3, places, strict=True)]
    assert found == [
        {"id": name, "seq": n, "partition": p, "duplicate": False} for name, (p, n) in zip(names, places, strict=True)
    ]


@pytest.mark.parametrize("ids", [None, ["a", "b", "c", "d"]])
@pytest.mark.parametrize("others", [None, {0: Original(5, 2)}])
def test_places_are_told_in_the_order_of_the_call_however_its_blocks_stand(
    ids: list[str | None] | None, others: dict[int, Original | PushqError] | None
) -> None:
    columns = Columns(KIND_JSON, [b"0", b"1", b"2", b"3"], slots=[9, 200, 9, 200], partitions=[1, 0, 1, 0])
    blocks, order = column_blocks(columns)
    assert order == [0, 2, 1, 3]
    published = Published(1, Offset(50), 4, others=others, places=[(1, 50), (1, 51), (0, 80), (0, 81)])
    found = rows(published, Prepared(blocks, ids, order))
    first = (2, 5) if others else (1, 50)
    assert [(row["partition"], row["seq"]) for row in found] == [first, (0, 80), (1, 51), (0, 81)]
    assert [row["duplicate"] for row in found] == [others is not None, False, False, False]
    if ids is None:
        assert [row["id"] for row in found] == [f"{p}-{n:012x}" for p, n in [first, (0, 80), (1, 51), (0, 81)]]


def test_a_message_may_repeat_one_in_another_partition() -> None:
    others: dict[int, Original | PushqError] = {0: Original(4, 6), 1: Original(5), 2: Original(-1, 7)}
    published = Published(1, Offset(9), 3, others=others, places=[(1, 9), (2, 3), (2, 4)])
    found = rows(published, three([None, None, "c"]))
    assert [(r["id"], r["seq"], r["partition"], r["duplicate"]) for r in found] == [
        ("6-000000000004", 4, 6, True),
        ("2-000000000005", 5, 2, True),
        ("c", None, 7, True),
    ]
    alone = rows(Published(1, Offset(9), 3, others={1: Original(4, 6)}), three())
    assert [(r["partition"], r["seq"]) for r in alone] == [(1, 9), (6, 4), (1, 11)]


def test_what_one_partition_refused_is_told_beside_what_others_took() -> None:
    others: dict[int, Original | PushqError] = {0: QueueFull("full"), 2: Original(4, 6)}
    found = rows(Published(2, Offset(3), 3, others=others, places=[(2, -1), (2, 3), (2, -1)]), three(["a", "b", "c"]))
    assert "seq" not in found[0] and found[0]["error"]["code"] == "queue-full"
    assert [(r["id"], r["seq"], r["partition"]) for r in found[1:]] == [("b", 3, 2), ("c", 4, 6)]


full, again = QueueFull("full"), DedupeFull("full")


@pytest.mark.parametrize(
    ("others", "reason"),
    [
        (None, None),
        ({0: full}, None),
        ({0: full, 1: Original(3)}, None),
        ({0: full, 1: again}, full),
        ({0: again, 1: again}, again),
    ],
)
def test_a_call_is_refused_when_each_of_its_messages_is(
    others: dict[int, Original | PushqError] | None, reason: PushqError | None
) -> None:
    assert refusal(Published(0, Offset(9), 2, others=others)) is reason


@pytest.mark.parametrize("count", [1, 256, 257, 1000])
@pytest.mark.parametrize("base", [0, 1, 255, 256, 65_535, 2**32 - 300])
def test_places_of_a_call_of_any_length_follow_each_other(base: int, count: int) -> None:
    names = NumberedNames("n-", count)
    found = msgspec.msgpack.decode(
        array_header(count) + numbered_rows(1, names, range(base, base + count), is_repeat=False)
    )
    wanted = zip(names, range(base, base + count), strict=True)
    assert found == [{"id": name, "seq": seq, "partition": 1, "duplicate": False} for name, seq in wanted]


@pytest.mark.parametrize("partition", [0, 9, 123])
@pytest.mark.parametrize("count", [1, BY_COLUMNS_FROM - 1, BY_COLUMNS_FROM, 256, 257, 1000])
@pytest.mark.parametrize("base", [0, 1, 9, 10, 94, 255, 256, 990, 65_535, 2**32 - 300, 2**48 - 1001])
def test_messages_without_a_name_are_named_by_their_places(base: int, count: int, partition: int) -> None:
    prepared = Prepared(plain_blocks(KIND_JSON, [b"1"] * count), None)
    for is_repeat in (False, True):
        assert rows(Published(partition, Offset(base), count, is_repeat=is_repeat), prepared) == [
            {"id": message_id(partition, seq), "seq": seq, "partition": partition, "duplicate": is_repeat}
            for seq in range(base, base + count)
        ]


@pytest.mark.parametrize("base", [0, 65_500, 2**40 - 50, 2**53 - 101])
@pytest.mark.parametrize("order", [None, [*range(99, -1, -1)]])
@pytest.mark.parametrize(("prefix", "first"), [("a" * 24 + "-", 0), ("%s-", 900)])
def test_numbered_names_stand_each_with_its_own_place(
    base: int, order: list[int] | None, prefix: str, first: int
) -> None:
    """Also where a call passes multiples of 256 and of 65,536 on its way."""
    names = NumberedNames(prefix, 100, first)
    prepared = Prepared(plain_blocks(KIND_JSON, [b"1"] * 100, None, names), names, order)
    for is_repeat in (False, True):
        found = rows(Published(3, Offset(base), 100, is_repeat=is_repeat), prepared)
        assert [row["id"] for row in found] == [f"{prefix}{n:03d}" for n in range(first, first + 100)]
        wanted = [*range(base, base + 100)]
        assert [row["seq"] for row in found] == (wanted if order is None or is_repeat else wanted[::-1])
        assert {(row["partition"], row["duplicate"]) for row in found} == {(3, is_repeat)}
