"""Checks that every transport makes alike."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from backend_store.model import InvalidRequest, Verdict
from push.operations.checks import check_id, checked_credit, checked_visibility, not_yet, results, visibility_of
from tests.support.queues import queue
from tests.support.world import queue_of

TWELVE_HOURS_MS = 12 * 3600 * 1000


def test_numbers_within_their_range_pass() -> None:
    assert [checked_credit(n) for n in (1, 10_000)] == [1, 10_000]
    assert [checked_visibility(n) for n in (0, TWELVE_HOURS_MS)] == [0, TWELVE_HOURS_MS]


@pytest.mark.parametrize(
    ("check", "value", "pointer"),
    [
        (checked_credit, 0, "/credit"),
        (checked_credit, 10_001, "/credit"),
        (checked_visibility, -1, "/visibility_timeout_ms"),
        (checked_visibility, TWELVE_HOURS_MS + 1, "/visibility_timeout_ms"),
    ],
)
def test_numbers_beyond_it_are_refused_with_the_range(check: Callable[[int], int], value: int, pointer: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check(value)
    assert refused.value.errors[0].pointer == pointer
    assert str(value) in refused.value.detail


def test_an_id_has_64_characters_at_most() -> None:
    for good in ("x" * 64, 2**64, None, ""):
        check_id(good)
    with pytest.raises(InvalidRequest, match="characters, not 65"):
        check_id("x" * 65)


def test_what_is_not_built_is_refused_by_its_name() -> None:
    error = not_yet("/group", "consumer groups")
    assert "consumer groups" in error.detail and error.errors[0].pointer == "/group"


def test_each_receipt_has_its_row() -> None:
    assert results(["a", "b"], [Verdict(True), Verdict(False, "stale-receipt")]) == [
        {"receipt": "a", "ok": True},
        {"receipt": "b", "ok": False, "error": "stale-receipt"},
    ]


def test_nobody_asks_for_leases_of_a_queue_without_any() -> None:
    once, plain = queue_of(queue(delivery="at_most_once")), queue_of(queue())
    assert (visibility_of(once, None), visibility_of(plain, None), visibility_of(plain, 5)) == (30_000, 30_000, 5)
    with pytest.raises(InvalidRequest) as refused:
        visibility_of(once, 5)
    assert [error.pointer for error in refused.value.errors] == ["/visibility_timeout_ms"]
    assert "at_most_once" in refused.value.detail
