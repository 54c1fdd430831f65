"""What a body may be, and what is said of one that may not."""

from __future__ import annotations

import dataclasses
import enum
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest

from push.client.bodies import fit
from push.client.errors import ApiError


@dataclasses.dataclass
class Order:
    id: UUID
    at: datetime
    tags: tuple[str, ...] = ()


class Colour(enum.Enum):
    RED = "red"


PLAIN: list[Any] = [None, True, 1, 1.5, "a", b"a", {"a": [1, {"b": None}]}, [], {}, [1.0, [2.0]]]
WITH_A_USUAL_TEXT: list[Any] = [
    datetime(2026, 1, 2, tzinfo=UTC),
    [date(2026, 1, 2)],
    {"a": UUID(int=5)},
    {1: Decimal("1.50")},
    {1},
    (1, ("a",)),
    Order(UUID(int=5), datetime(2026, 1, 2, tzinfo=UTC), ("a", "b")),
    [Colour.RED, {"c": Colour.RED}],
]


@pytest.mark.parametrize("body", PLAIN)
def test_a_plain_body_is_sent_as_it_is(body: Any) -> None:
    assert fit(body) is body


@pytest.mark.parametrize("body", WITH_A_USUAL_TEXT, ids=repr)
def test_what_has_a_usual_text_is_the_same_in_every_encoding(body: Any) -> None:
    sent = fit(body)
    by_json = msgspec.json.decode(msgspec.json.encode(sent))
    assert by_json == msgspec.msgpack.decode(msgspec.msgpack.encode(sent))
    assert by_json == msgspec.json.decode(msgspec.json.encode(body))


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: [x], lambda x: {"a": (1, x)}, lambda x: [{1: {"b": [x]}}]])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_none_is_refused_however_deep(wrap: Any, value: float) -> None:
    with pytest.raises(ApiError, match="NaN and infinity have no JSON representation; send null") as refused:
        fit(wrap(value))
    assert (refused.value.code, [error.pointer for error in refused.value.problem.errors]) == (
        "invalid-request",
        ["/body"],
    )


@dataclasses.dataclass
class Blob:
    data: bytes


@pytest.mark.parametrize("body", [[b"a"], {"a": bytearray(b"a")}, ("a", memoryview(b"a")), Blob(b"a"), {1: [b"a"]}])
def test_bytes_inside_a_value_are_refused(body: Any) -> None:
    with pytest.raises(ApiError, match="send them as base64 text, or the whole body as bytes"):
        fit(body)
