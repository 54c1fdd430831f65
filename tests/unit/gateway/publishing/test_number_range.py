"""Numbers that a client's decoder refuses are found, and nothing else is."""

from __future__ import annotations

import itertools
import json
import math
import tracemalloc
from typing import Any

import msgspec
import pytest

from backend_store.core.reorder.hlc import HybridClock
from backend_store.model import InvalidRequest
from gateway.publishing import number_range
from gateway.publishing.encode import prepare, prepare_plain
from gateway.publishing.number_range import OUT_OF_RANGE, unreadable
from push.protocol import PublishMessage
from tests.unit.gateway.publishing.test_encode import NOW_MS, PLAIN

READ = [
    b"0",
    b"-1.5e-999",
    b"1e308",
    b"1E+308",
    b"0e999",
    b"1e0000000001",
    b"9" * 308,
    b"-" + b"1" * 309,
    b"1e-" + b"9" * 400,
    b"-0." + b"9" * 400 + b"E-" + b"9" * 400,
    b'["\\"' + b"9" * 400 + b'"]',
    b"0." + b"9" * 5000,
    b"0." + b"0" * 5000 + b"1",
    b'"1e999"',
    b'{"1e999": "' + b"9" * 5000 + b'"}',
    b'"f3b0e123-1e999-4e0000"',
    b"",
]
REFUSED = [
    b"1e999",
    b"-1e309",
    b"1E+400",
    b"1.5e0000999",
    b"9" * 309,
    b"-" + b"9" * 309,
    b'["\\"", ' + b"9" * 400 + b"]",
    b'{"a":' + b"9" * 4300 + b"}",
    b"9" * 4301,
    b"-" + b"9" * 5000,
    b"9" * 250 + b"e100",
    b"9" * 250 + b".5e99",
    b"9" * 309 + b".0",
    b'{"a": [1, {"b": 1e999}]}',
    b'{"a": "1e100", "b": 123e4567}',
]

HUGE = "9" * 309
PIECES = [HUGE, f"-{HUGE}", "1" * 309, "x", "é\u2028😀", " ,:[{", "\\\\", '\\"', "\\u0022", "\\n"]
"""What strings are made of: digits, plain text, and escapes as JSON writes them."""
SHAPES = ['["%s", %s]', '[%s, "%s"]', '{"%s": %s}', '{"a": [{"%s": {"b": %s}}], "c": "%s"}', '["%s", "", "%s", %s]']


@pytest.mark.parametrize("body", READ, ids=lambda body: body[:20].decode())
def test_what_a_client_reads_is_taken(body: bytes) -> None:
    assert unreadable([b"1", body]) == []
    if body:
        msgspec.json.decode(body)


@pytest.mark.parametrize("body", REFUSED, ids=lambda body: body[:20].decode())
def test_what_a_client_refuses_is_found_by_its_place(body: bytes) -> None:
    assert unreadable([b"1", body, b'"1e999"', b"2"]) == [1]
    try:
        value = msgspec.json.decode(body)
    except msgspec.MsgspecError:
        return
    with pytest.raises(OverflowError):
        float(value if isinstance(value, int) else [*(value.values() if isinstance(value, dict) else value)][-1])


def test_bodies_without_very_large_numbers_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(number_range, "_is_read", lambda body: pytest.fail("it was read"))
    bodies = [{"sku": 7, "price": 12.5, "at": 1732500000000}, "text", [1e20, -3.5e-300], None, "1e99"]
    assert unreadable([json.dumps(body).encode() for body in bodies]) == []


def is_read_slowly(body: str) -> bool:
    """As `unreadable` says it of one body, by a reader that looks at each number."""
    found: list[float] = []
    json.loads(
        body, parse_int=lambda text: found.append(float(text)), parse_float=lambda text: found.append(float(text))
    )
    return not any(map(math.isinf, found))


@pytest.mark.parametrize("number", ["7", f"-{HUGE}", "1" * 309, "0." + HUGE])
@pytest.mark.parametrize("shape", SHAPES)
def test_digits_in_a_string_are_no_number_whatever_else_is_in_it(shape: str, number: str) -> None:
    is_string = [part.endswith('"') for part in shape.split("%s")[:-1]]
    for pieces in itertools.product(PIECES, repeat=3):
        body = shape % tuple("".join(pieces) if quoted else number for quoted in is_string)
        assert (unreadable([body.encode()]) == []) is is_read_slowly(body), body


@pytest.mark.parametrize(
    "body",
    [
        b'["' + b"x" * 4_000_000 + b'",' + b"1" * 309 + b"]",
        b'["' + rb"\\\"\\" * 800_000 + b'",' + b"1" * 309 + b"]",
        b'["' + b"9" * 4_000_000 + b'."]',
        b'["' + b'","'.join([b"9" * 309] * 10_000) + b'"]',
        b"[" + b"{}," * 1_000_000 + b"1" * 309 + b"]",
        b"[" + b"0.1e300," * 400_000 + b"1" * 309 + b"]",
    ],
    ids=["plain", "escapes", "digits", "many", "values", "numbers"],
)
def test_a_body_takes_memory_of_its_own_size_and_its_value_is_not_built(body: bytes) -> None:
    tracemalloc.start()
    try:
        assert unreadable([body]) == []
        assert tracemalloc.get_traced_memory()[1] < 4 * len(body)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("is_plain", [True, False])
def test_a_publish_names_the_message_whose_body_no_client_reads(is_plain: bool) -> None:
    bodies = [msgspec.Raw(b"1"), msgspec.Raw(b"[1e999]"), msgspec.Raw(b"2")]
    given: Any = bodies if is_plain else [PublishMessage(body=body) for body in bodies]
    make: Any = prepare_plain if is_plain else prepare
    with pytest.raises(InvalidRequest) as refused:
        make(PLAIN, given, "json", now_ms=NOW_MS, clock=HybridClock())
    assert [(e.pointer, e.detail) for e in refused.value.errors] == [("/messages/1/body", OUT_OF_RANGE)]
