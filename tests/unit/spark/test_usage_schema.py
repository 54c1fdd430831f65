"""Spark's types of the usage files are the ones that the files are written with."""

from __future__ import annotations

import pytest
from pyspark.sql.types import StructField

from gateway.usage import schema
from gateway.usage.schema import ROWS, FileKind, columns
from spark.usage_schema import KEYS, SCHEMAS


def simple(field: StructField) -> str:
    return field.dataType.simpleString().replace("bigint", "long")


@pytest.mark.parametrize("kind", ROWS)
def test_both_sides_have_the_same_fields_in_the_same_order(kind: FileKind) -> None:
    written = [(column.name, column.type, column.nullable) for column in columns(ROWS[kind])]
    assert [(field.name, simple(field), field.nullable) for field in SCHEMAS[kind].fields] == written


@pytest.mark.parametrize("kind", ROWS)
def test_both_sides_agree_on_what_makes_rows_the_same(kind: FileKind) -> None:
    assert tuple(KEYS[kind]) == schema.KEYS[kind]
