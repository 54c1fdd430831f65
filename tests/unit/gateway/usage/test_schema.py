"""The rows' fields, as the pipeline and the reference page are told of them."""

from __future__ import annotations

import msgspec
import pytest

from gateway.usage.schema import KEYS, ROWS, FileKind, columns


@pytest.mark.parametrize("kind", ROWS)
def test_fields_stand_in_the_order_in_which_they_are_written(kind: FileKind) -> None:
    fields = msgspec.structs.fields(ROWS[kind])
    assert [column.name for column in columns(ROWS[kind])] == [field.encode_name for field in fields]
    assert set(KEYS[kind]) <= {column.name for column in columns(ROWS[kind])}


@pytest.mark.parametrize("kind", ROWS)
def test_every_row_says_the_version_of_its_shape_first(kind: FileKind) -> None:
    assert columns(ROWS[kind])[0].name == "version"


def test_only_what_may_be_missing_is_nullable() -> None:
    nullable = {column.name for kind in ROWS.values() for column in columns(kind) if column.nullable}
    assert nullable == {"bytes", "status", "trace_id", "address"}
