"""Spark's types of the usage files are the ones that the files are written with."""

from __future__ import annotations

import pytest
from pyspark.sql.types import StructField

from backend_store.client import LEDGER_KINDS
from gateway.usage import schema
from gateway.usage.schema import ROWS, FileKind, columns
from spark.usage_schema import KEYS, LATENCY_SECONDS, LEDGER_FLOWS, SCHEMAS


def simple(field: StructField) -> str:
    return field.dataType.simpleString().replace("bigint", "long")


@pytest.mark.parametrize("kind", ROWS)
def test_both_sides_have_the_same_fields_in_the_same_order(kind: FileKind) -> None:
    written = [(column.name, column.type, column.nullable) for column in columns(ROWS[kind])]
    assert [(field.name, simple(field), field.nullable) for field in SCHEMAS[kind].fields] == written


@pytest.mark.parametrize("kind", ROWS)
def test_both_sides_agree_on_what_makes_rows_the_same(kind: FileKind) -> None:
    assert tuple(KEYS[kind]) == schema.KEYS[kind]


def test_both_sides_have_the_same_kinds_with_the_same_signs_and_the_same_latencies() -> None:
    signs = {"in": 1, "out": -1, "told": 0}
    assert {"held": 0, **{kind: signs[flow] for kind, flow in LEDGER_KINDS.items()}} == LEDGER_FLOWS
    assert LATENCY_SECONDS == schema.LATENCY_SECONDS_BUCKETS
