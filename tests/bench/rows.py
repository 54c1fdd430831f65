"""Rows of results, one per run of a scenario, stored as JSON lines; and the statistics that all scenarios share."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]
"""`kind` is `machine`, `baseline` or the name of a scenario; the rest are figures, named with their unit last."""


def percentiles_ms(values_ns: Iterable[int]) -> dict[str, float]:
    ordered = sorted(values_ns)
    if not ordered:
        return {}
    return {
        "p50_ms": round(_at(ordered, 0.5) / 1e6, 3),
        "p99_ms": round(_at(ordered, 0.99) / 1e6, 3),
        "p999_ms": round(_at(ordered, 0.999) / 1e6, 3),
    }


def _at(ordered: Sequence[int], share: float) -> int:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def read_rows(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def append_row(path: Path, row: Row) -> None:
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")
