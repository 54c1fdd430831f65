"""Ids that name places: what was given out is read back, anything else is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_store.core.dedupe.message_ids import message_id, parse_message_id
from backend_store.model import PARTITIONS_MAX

partitions = st.integers(0, PARTITIONS_MAX - 1)


@given(partitions, st.integers(0, 2**64 - 1))
def test_a_place_is_read_from_the_id_it_makes(partition: int, offset: int) -> None:
    assert parse_message_id(message_id(partition, offset)) == (partition, offset)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "-000000000001",
        "0-1",
        "0-00000000000G",
        "0-00000000000A",
        "00-000000000001",
        "0-0000000000001",
        "64-000000000001",
        "٣-000000000001",
        "0-+00000000001",
        "0-00_000000001",
        "order-17",
    ],
)
def test_an_id_that_is_no_place_is_somebodys_own(text: str) -> None:
    assert parse_message_id(text) is None
