"""From a key to a claim and names: what is the same call, and what is another."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from backend_store.model import InvalidRequest, QueueConfig
from gateway.publishing.columns import CallColumns
from gateway.publishing.idempotency_keys import HEADER, Named, key_of_headers, named
from push.ports import KeyOf
from push.protocol import PublishMessage

BODIES = [b'"a"', b'{"b":1}']


def queue(uid: int = 7, name: str = "orders") -> Any:
    return SimpleNamespace(uid=uid, name=name, config=QueueConfig())


def call(
    key: str = "k",
    *,
    principal: str = "ann",
    of: Any = None,
    bodies: list[bytes] = BODIES,
    kind: int = 0,
    **fields: Any,
) -> Named:
    columns = CallColumns.of([PublishMessage(**fields) for _ in bodies]).beside_bodies()
    return named(of or queue(), KeyOf(principal, key), kind, bodies, list(map(len, bodies)), columns)


@pytest.mark.parametrize(
    ("header", "key"),
    [
        (b'"8e03978e-40d5"', "8e03978e-40d5"),
        (b"8e03978e-40d5", "8e03978e-40d5"),
        (b'"a \\"b\\" \\\\"', 'a "b" \\'),
        (b'a"b', 'a"b'),
        (b"  padded  ", "padded"),
        (b'" "', " "),
        (b"x" * 255, "x" * 255),
    ],
)
def test_a_key_has_quotes_or_none(header: bytes, key: str) -> None:
    assert key_of_headers([(b"host", b"x"), (HEADER, header)]) == key


@pytest.mark.parametrize("header", [b"", b'""', b'"a', b'"a"b', b'"\\n"', b"x" * 256, b"\x7f", "é".encode()])
def test_what_is_no_key_is_refused_by_its_name(header: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        key_of_headers([(HEADER, header)])
    assert "Idempotency-Key" in caught.value.detail
    assert [error.pointer for error in caught.value.errors] == ["/headers/idempotency-key"]


def test_a_priority_that_was_left_out_or_null_is_0_to_a_claim() -> None:
    """Of a call whose other messages have one, also across versions: 0 was what stood there before."""
    claims = []
    for priority in (None, 0):
        messages = [PublishMessage(priority=priority), PublishMessage(priority=3)]
        columns = CallColumns.of(messages).beside_bodies()
        assert columns["priority"] == [0, 3] or columns["priority"] == (0, 3)
        claims.append(named(queue(), KeyOf("ann", "k"), 0, BODIES, list(map(len, BODIES)), columns).claim)
    assert claims[0] == claims[1]
    assert CallColumns.of([PublishMessage(), PublishMessage(priority=0)]).beside_bodies() == {}


def test_the_same_call_has_the_same_claim_and_names() -> None:
    assert call() == call()
    assert len(set(call().ids)) == 2


@pytest.mark.parametrize(
    "other",
    [
        call("another"),
        call(principal="bob"),
        call(of=queue(uid=8)),
        call(of=queue(name="moved")),
    ],
)
def test_another_key_principal_or_queue_is_another_claim(other: Named) -> None:
    mine = call()
    assert mine.claim.key != other.claim.key
    assert not set(mine.ids) & set(other.ids)
    assert mine.claim.payload != other.claim.payload  # so that nobody sees who publishes the same


@pytest.mark.parametrize(
    "other",
    [
        call(bodies=[*BODIES, b"1"]),
        call(bodies=BODIES[::-1]),
        call(bodies=[b'"a"{"b":1}', b""]),
        call(kind=1),
        call(headers={"x": "1"}),
        call(id="mine"),
        call(delay_ms=5),
    ],
)
def test_another_payload_has_the_key_and_another_claim(other: Named) -> None:
    mine = call()
    assert mine.claim.key == other.claim.key
    assert mine.claim.payload != other.claim.payload
    assert not set(mine.ids) & set(other.ids)


def test_headers_are_the_same_in_any_order() -> None:
    assert call(headers={"a": "1", "b": "2"}) == call(headers={"b": "2", "a": "1"})


def test_a_priority_of_zero_is_none() -> None:
    assert call(priority=0) == call()
    assert call(priority=1) != call()


def test_the_producer_s_numbers_are_not_part_of_the_payload() -> None:
    assert call(producer="p", producer_seq=1, timestamp="2026-01-01T00:00:00Z") == call()
