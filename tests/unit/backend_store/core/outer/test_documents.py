"""Rows of clusters: what was written is read, also by who knows fewer fields than were written."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from backend_store.core.outer.clusters import Cluster, Report, heard
from backend_store.core.outer.documents import parsed, stored


def test_a_row_is_read_as_it_was_written() -> None:
    first = heard(None, Report("eu", 1_000, 3, 0.9))
    for cluster in (first, replace(first, resized_at_ms=7), Cluster(Report("us", 0, 1, 0.1, is_healthy=False))):
        assert parsed(stored(cluster)) == cluster


def test_a_field_of_a_later_version_is_passed_over() -> None:
    row = msgspec.msgpack.decode(stored(heard(None, Report("eu", 1_000, 3, 0.9))))
    row["later"] = 1
    row["report"]["later"] = 2
    assert parsed(msgspec.msgpack.encode(row)).report.utilisation == 0.9


@pytest.mark.parametrize("data", [b"", b"\xc1", msgspec.msgpack.encode({"report": 1})])
def test_what_is_no_row_is_said_so(data: bytes) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        parsed(data)
