"""Names and times: what is taken, what is refused, and with which words."""

from __future__ import annotations

from typing import Any

import pytest

from backend_store.model import InvalidRequest
from gateway.api.validate import (
    check_name,
    check_new_queue_name,
    check_no_companion,
    fields_with_whole_numbers,
    time_ms,
)


@pytest.mark.parametrize("name", ["a", "0", "A.b_c-d", "q" * 128, "orders.dead.letters"])
def test_a_name_of_the_protocol_is_taken(name: str) -> None:
    check_new_queue_name(name)


@pytest.mark.parametrize("name", ["", ".a", "-a", "_a", "a b", "a/b", "ä", "q" * 129, "a\n", "a%", "orders\x00"])
def test_another_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest):
        check_name(name)


@pytest.mark.parametrize("name", ["orders.dead", "orders.late"])
def test_a_companion_cannot_be_made(name: str) -> None:
    with pytest.raises(InvalidRequest, match="belong to the queue 'orders'"):
        check_new_queue_name(name)


@pytest.mark.parametrize("name", ["orders.dead", "orders.late", "q" * 128 + ".dead"])
def test_a_companion_cannot_be_changed_and_names_the_queue_that_can(name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"change '{name[:-5]}'"):
        check_no_companion(name)
    check_no_companion(name[:-5])


def test_a_whole_number_may_be_written_with_a_point() -> None:
    assert fields_with_whole_numbers({"a": 30000.0, "b": 1.5, "c": "2.0"}) == {"a": 30000, "b": 1.5, "c": "2.0"}


def test_fields_that_are_nested_very_deep_are_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(400):
        deep = {"a": deep}
    with pytest.raises(InvalidRequest, match="more than 16 levels"):
        fields_with_whole_numbers({"from": deep})


def test_times_have_a_zone() -> None:
    assert time_ms("2026-11-21T10:00:00.5Z", pointer="/t") == time_ms("2026-11-21T11:00:00.500+01:00", pointer="/t")
    for wrong in ("2026-11-21T10:00:00", "tomorrow", "", "2026-13-01T00:00:00Z", "9999-12-31T23:59:59-23:59"):
        with pytest.raises(InvalidRequest):
            time_ms(wrong, pointer="/t")
