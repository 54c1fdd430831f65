from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from push.client.arguments import check_fields, check_queue, start_of
from push.client.errors import ApiError


@pytest.mark.parametrize("queue", ["\ud800", 7, None, b"orders"])
def test_what_is_no_name_is_refused(queue: Any) -> None:
    with pytest.raises(ApiError, match="/queue"):
        check_queue(queue)


WRONG = ["", ".", "..", "a/b", "a/../b", ".dead", "-a", "a b", "a?b", "a%2Fb", "a\n", "zażółć", "😀", "a" * 129]


@pytest.mark.parametrize("queue", WRONG)
def test_a_name_that_no_queue_has_could_be_the_address_of_something_else(queue: str) -> None:
    with pytest.raises(ApiError, match="invalid queue name"):
        check_queue(queue)


@pytest.mark.parametrize("queue", ["orders", "orders.dead", "7", "A_b-c.d..e", "a" * 128])
def test_the_server_knows_which_of_the_names_there_are(queue: str) -> None:
    check_queue(queue)


@pytest.mark.parametrize("value", ["\ud800", 2**64, object(), {"seq": object()}])
def test_a_value_without_a_form_is_named_by_its_field(value: Any) -> None:
    with pytest.raises(ApiError) as caught:
        check_fields(good=1, bad=value)
    assert [error.pointer for error in caught.value.problem.errors] == ["/bad"]


def test_a_time_to_begin_at_travels_as_text() -> None:
    assert start_of({"time": datetime(2026, 1, 2, 3, tzinfo=UTC)}) == {"time": "2026-01-02T03:00:00.000Z"}
    assert [start_of(given) for given in (None, "latest", {"seq": 3})] == [None, "latest", {"seq": 3}]
    with pytest.raises(ValueError, match="a time needs a time zone"):
        start_of({"time": datetime(2026, 1, 2, 3, tzinfo=UTC).replace(tzinfo=None)})
