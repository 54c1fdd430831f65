"""The data source's rules without Spark: ids, places, options, messages as text."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import pytest

from spark.source.errors import DataLost, StreamChanged, WrongOption, WrongRow
from spark.source.exact import messages_of
from spark.source.ids import DerivedIds
from spark.source.offsets import (
    Bound,
    Layout,
    Part,
    advance,
    as_offset,
    begin,
    check_kept,
    check_reached,
    joined,
    parsed_bound,
    positions_of,
    reached,
    splits,
)
from spark.source.options import parsed
from spark.source.outgoing import message_json
from spark.source.rows import bound_to
from spark.source.sealing import Sealer

LAYOUT = Layout("q", "7", "stream", (Part(0, 5, 20), Part(1, 0, 100)))
GIVEN = {"url": "http://gateway:8080", "queue": "q", "token": "k"}


def test_ids_depend_on_contents_and_not_on_their_order() -> None:
    rows = [{"body": str(n % 10), "headers": {"a": "1", "b": "2"}} for n in range(50)]
    first = DerivedIds("run", 3, 1)
    ids = [first.next(row) for row in rows]
    assert len(set(ids)) == 50
    mixed = [{"headers": {"b": "2", "a": "1"}, "body": row["body"]} for row in rows]
    random.Random(4).shuffle(mixed)
    again = DerivedIds("run", 3, 1)
    assert Counter(again.next(row) for row in mixed) == Counter(ids)
    for other in (DerivedIds("run", 4, 1), DerivedIds("run", 3, 2), DerivedIds("other", 3, 1)):
        assert other.next(rows[0]) not in ids


def test_a_task_with_too_many_rows_is_told_how_to_cut_them() -> None:
    ids = DerivedIds("run", None, 0, rows_max=2)
    for body in ("1", "2", "1"):
        ids.next({"body": body})
    with pytest.raises(WrongRow, match=r"repartition.*idColumn"):
        ids.next({"body": "3"})


def test_a_batch_stays_within_its_bound_and_leaves_no_partition_behind() -> None:
    start, target = {0: 5, 1: 0}, {0: 20, 1: 100}
    end = advance(start, target, 23)
    assert sum(end[n] - start[n] for n in start) <= 24
    assert all(end[n] > start[n] for n in start)
    assert advance(start, target, None) == target
    assert advance({0: 30, 1: 0}, target, None)[0] == 30, "an offset never goes back"


def test_splits_cover_a_range_once() -> None:
    found = splits({0: 5, 1: 0}, {0: 20, 1: 100}, 30)
    offsets = [(one.partition, n) for one in found for n in range(one.start, one.end)]
    assert offsets == [(0, n) for n in range(5, 20)] + [(1, n) for n in range(100)]


def test_a_partition_that_came_since_is_read_from_its_beginning() -> None:
    assert joined({1: 50}, LAYOUT) == {0: 5, 1: 50}


def test_bounds() -> None:
    assert begin(parsed_bound("startingOffsets", "earliest"), LAYOUT, "startingOffsets") == {0: 5, 1: 0}
    assert begin(parsed_bound("startingOffsets", "latest"), LAYOUT, "startingOffsets") == {0: 20, 1: 100}
    assert begin(Bound("positions", {1: 9}), LAYOUT, "endingOffsets") == {0: 20, 1: 9}
    with pytest.raises(WrongOption, match="no partition 4, only 0, 1"):
        begin(Bound("positions", {4: 9}), LAYOUT, "startingOffsets")
    for text in ("", "{}", '{"0": -1}', "[1]", '{"a": 1}'):
        with pytest.raises(WrongOption, match="earliest, latest, or an offset"):
            parsed_bound("startingOffsets", text)


def test_a_checkpoint_is_of_one_stream() -> None:
    offset = json.loads(json.dumps(as_offset(LAYOUT, {0: 6, 1: 2})))
    assert positions_of(offset, LAYOUT) == {0: 6, 1: 2}
    with pytest.raises(StreamChanged, match=r"uid 7.*now has uid 8"):
        positions_of(offset, Layout("q", "8", "stream", LAYOUT.parts))


def test_what_is_gone_is_told_with_its_offsets() -> None:
    check_kept({0: 5, 1: 0}, {0: 20, 1: 100}, LAYOUT)
    with pytest.raises(DataLost, match="partition 0: offsets 2 to 4 are gone"):
        check_kept({0: 2, 1: 0}, {0: 20, 1: 100}, LAYOUT)
    with pytest.raises(DataLost, match="partition 2: offsets 3 to 8"):
        check_kept({2: 3}, {2: 9}, LAYOUT)


def test_a_stream_that_ends_before_a_place_is_told_and_gone_on_with_from_its_end() -> None:
    check_reached({0: 20, 1: 100, 2: 7}, LAYOUT)
    with pytest.raises(DataLost, match=r"partition 0: the stream ends at offset 20.*is at 21.*failOnDataLoss"):
        check_reached({0: 21, 1: 0}, LAYOUT)
    assert reached({0: 21, 1: 30, 2: 7}, LAYOUT) == {0: 20, 1: 30, 2: 7}


def test_messages_keep_their_bodies_to_the_digit() -> None:
    body = '{ "a" : 1.10, "n": ' + "9" * 5000 + ', "s": "}],{" }'
    text = f'{{"uid":"7", "messages": [ {{"seq":1,"body":{body},"key":null}} , {{"seq":2,"body":[]}}],"next":3}}'
    rest, (first, second) = messages_of(text)
    assert rest == {"uid": "7", "next": 3}
    assert (first["body"], first["seq"], first["key"], second["body"]) == (body, 1, None, "[]")
    assert messages_of('{"messages":[],"next":1}') == ({"next": 1}, [])


def test_a_message_is_written_with_its_body_untouched() -> None:
    text = message_json({"body": '{"a":1.10}', "key": "k", "headers": {"h": "v"}}, "id")
    assert text.startswith('{"body":{"a":1.10},')
    assert json.loads(text) == {"body": {"a": 1.1}, "key": "k", "headers": {"h": "v"}, "id": "id"}
    assert json.loads(message_json({"body": b"\x00", "content_type": "image/png"}, None)) == {
        "body_base64": "AA==",
        "content_type": "image/png",
    }


@pytest.mark.parametrize("body", ['1},{"body":2', "x", "", "NaN", b"\xff", None])
def test_a_body_that_is_not_json_cannot_become_something_else(body: object) -> None:
    with pytest.raises(WrongRow, match='column "body"'):
        message_json({"body": body, "encoding": "json"}, None)


def test_a_sealed_row_opens_in_its_place_and_with_its_key_alone() -> None:
    sealer, place = Sealer(b"k" * 32), bound_to("q", "7", 0, 1)
    sealed = sealer.seal({"body": b"secret", "headers": {"a": "b"}}, place)
    assert sealer.open(sealed, place) == {"body": b"secret", "headers": {"a": "b"}}
    for other, where in [(Sealer(b"o" * 32), place), (sealer, bound_to("q", "7", 0, 2))]:
        with pytest.raises(WrongOption, match="another key"):
            other.open(sealed, where)


def test_the_key_comes_from_option_file_or_environment_and_is_never_shown(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("from-file\n")
    without = {name: value for name, value in GIVEN.items() if name != "token"}
    assert parsed(GIVEN, {"PUSHQ_KEY": "env"}).token == "k"
    assert parsed(without | {"tokenFile": str(path)}, {}).token == "from-file"
    options = parsed(without | {"sealkey": "ab" * 32}, {"PUSHQ_KEY": "from-env"})
    assert options.token == "from-env"
    assert options.seal_key == b"\xab" * 32
    assert "from-env" not in repr(options)
    assert "ab" * 4 not in repr(options)
    assert "\\xab" not in repr(options)


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("token", "", "PUSHQ_KEY"),
        ("token", "a b", "is not an API key"),
        ("url", "http://me:secret@gateway", "contains credentials"),
        ("url", "ftp://gateway", "http://gateway:8080"),
        ("tokenFile", "/nowhere/key", "cannot be read on the driver"),
        ("exactlyOnce", "yes", "true or false"),
        ("messagesPerRequest", "1001", "from 1 to 1000"),
        ("sealKey", "ab", "openssl rand -hex 32"),
    ],
)
def test_a_wrong_option_says_what_it_may_be(option: str, value: str, said: str) -> None:
    given = {name: text for name, text in GIVEN.items() if name != "token" or option != "tokenFile"}
    with pytest.raises(WrongOption, match=said) as told:
        parsed(given | {option: value}, {})
    assert "secret" not in str(told.value)
