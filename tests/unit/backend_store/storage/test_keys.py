"""Keys sort as their numbers do, and ranges hold exactly one replica."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_store.storage.keys import (
    REPLICA_MAX,
    log_key,
    log_range,
    mark_key,
    parse_log_key,
    parse_mark_key,
    parse_retry_key,
    retry_key,
    view_range,
)

replicas = st.integers(0, REPLICA_MAX)
groups = st.integers(0, 2**32 - 1)
offsets = st.integers(0, 2**64 - 1)


@given(replicas, groups, offsets)
def test_what_was_packed_is_parsed_back(replica: int, group: int, offset: int) -> None:
    assert parse_log_key(log_key(replica, offset)) == (replica, offset)
    assert parse_mark_key(mark_key(replica, group, offset)) == (replica, group, offset)
    assert parse_retry_key(retry_key(replica, group, offset)) == (replica, group, offset)


@given(st.tuples(replicas, groups, offsets), st.tuples(replicas, groups, offsets))
def test_keys_sort_as_their_numbers_do(one: tuple[int, int, int], other: tuple[int, int, int]) -> None:
    assert (mark_key(*one) < mark_key(*other)) == (one < other)
    assert (log_key(one[0], one[2]) < log_key(other[0], other[2])) == ((one[0], one[2]) < (other[0], other[2]))


@given(replicas, replicas, groups, offsets)
def test_a_range_holds_the_rows_of_its_replica_and_no_other(one: int, other: int, group: int, offset: int) -> None:
    start, end = log_range(one)
    assert (start <= log_key(other, offset) < end) == (one == other)
    assert (start <= mark_key(other, group, offset) < end) == (one == other)


@given(replicas, groups, groups, offsets)
def test_a_view_holds_the_rows_of_its_group_and_no_other(replica: int, one: int, other: int, base: int) -> None:
    start, end = view_range(replica, one)
    assert (start <= mark_key(replica, other, base) < end) == (one == other)


@pytest.mark.parametrize(("replica", "offset"), [(-1, 0), (2**32, 0), (0, -1), (0, 2**64)])
def test_a_number_that_does_not_fit_is_refused(replica: int, offset: int) -> None:
    with pytest.raises(struct.error):
        log_key(replica, offset)
