"""How deep a body is nested, as a decoder would find it."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.limits import BODY_DEPTH_MAX
from gateway.publishing.nesting import too_deep

MIB = 2**20


def depth_of(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth_of, value), default=0)
    return 0


def nested(value: Any, levels: list[bool]) -> Any:
    for is_list in levels:
        value = [value, "[[["] if is_list else {"}{": 1, "a": value}
    return value


@given(
    st.recursive(st.text('[]{}"\\\\', max_size=4), lambda inner: st.lists(inner, max_size=3), max_leaves=9),
    st.lists(st.booleans(), min_size=25, max_size=40),
)
def test_a_body_is_too_deep_when_its_value_is(value: Any, levels: list[bool]) -> None:
    whole = nested(value, levels)
    assert bool(too_deep([json.dumps(whole).encode()])) is (depth_of(whole) > BODY_DEPTH_MAX)


@given(st.lists(st.integers(1, 20).flatmap(lambda up: st.tuples(st.just(up), st.integers(1, 20))), max_size=40))
def test_the_deepest_place_counts_wherever_it_is(ways: list[tuple[int, int]]) -> None:
    """Ways up and down, as many levels each."""
    body, depth, deepest = ["["], 1, 1
    for up, down in ways:
        body.append("," * (body[-1][-1] == "]") + "[" * up)
        deepest = max(deepest, depth + up)
        down = min(down, depth + up - 1)
        body.append("]" * down)
        depth += up - down
    body.append("]" * depth)
    text = ("".join(body) + " " * 2 * BODY_DEPTH_MAX).encode()
    assert bool(too_deep([text])) is (deepest > BODY_DEPTH_MAX)


@pytest.mark.parametrize(
    "body", [b"[" * 32 + b"]" * 32, json.dumps("[" * 100).encode(), json.dumps([[]] * 99).encode()]
)
def test_many_brackets_are_not_deep(body: bytes) -> None:
    assert too_deep([body, b"1"]) == []
    assert too_deep([b"1", b"\n " + b"[" * 33 + body + b"]" * 33]) == [1]


@pytest.mark.parametrize("end", ["", "\\", '"', '\\"', '"\\', "\\\\", '\\\\"', "\n\\", '"[', '\\"['])
def test_a_text_ends_where_its_escapes_say(end: str) -> None:
    texts = ["[" * 40 + end, end, "]" * 40]
    assert too_deep([json.dumps(texts).encode(), json.dumps({text: text for text in texts}).encode()]) == []
    assert too_deep([json.dumps(nested(texts, [True, False] * 20)).encode()]) == [0]


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":"' + b"[" * 64 + b"x" * MIB + b'"}',
        b'{"a":"' + b"[" * 64 + b'\\"' * (MIB // 2) + b'"}',
        b'["' + b"[" * MIB + b'"]',
        b"[" * (MIB // 2) + b"]" * (MIB // 2),
        b"[" + b",".join([b"[" * 31 + b"]" * 31] * (MIB // 63)) + b"]",
    ],
)
def test_a_body_costs_little_more_memory_than_it_has(body: bytes) -> None:
    too_deep([body])
    tracemalloc.start()
    too_deep([body])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * len(body)


def test_many_short_texts_cost_a_bounded_multiple_of_the_body() -> None:
    body = b"[" + b",".join([b'"[["'] * (MIB // 5)) + b"]"
    tracemalloc.start()
    assert too_deep([body]) == []
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 24 * len(body)
