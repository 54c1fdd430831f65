"""Rows of `spark_scale` as Markdown, with the goals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from tests.bench.rows import Row
from tests.bench.stamp import says_when

GROWTH_MAX: Final = 11.0
"""What ten times the data may take, in times of what they take."""


class Goal(NamedTuple):
    rows: int
    seconds: float
    about: str


GOALS: Final = {
    "usage_rollup": Goal(10_000_000, 60.0, "rows of minutes"),
    "delivery_audit": Goal(50_000_000, 180.0, "rows of the ledger"),
}
_FULL: Final = 0.98
"""Whole hours are written, so a size is met to a few percent."""
_HEAD: Final = ("", "rows", "MB", "s", "rows/s", "again, s", "others, %", "goal")


NOTHING: Final = "No run has been published yet."


def report(rows: Sequence[Row]) -> str:
    if not rows:
        return NOTHING
    lines = [_machine(row) for row in rows if row["kind"] == "machine"]
    table = [list(_HEAD), ["---"] * len(_HEAD)]
    for name, goal in GOALS.items():
        mine = sorted((row for row in rows if row["kind"] == name), key=lambda row: int(row["rows"]))
        for number, row in enumerate(mine):
            said = [_verdict(f"≤ {goal.seconds:g} s", row["seconds"] <= goal.seconds)] if _is_full(row) else []
            if number and (growth := _growth(mine[number - 1], row)) is not None:
                said.append(_verdict(f"ten times the data ≤ {GROWTH_MAX:g} times: {growth:.1f}", growth <= GROWTH_MAX))
            table.append(
                [
                    f"`{name}`",
                    f"{row['rows']:,} {goal.about}",
                    f"{row['kilobytes'] / 1_000:,.0f}",
                    f"{row['seconds']:,.1f}",
                    f"{row['rows'] / max(row['seconds'], 0.1):,.0f}",
                    f"{row['again_seconds']:.1f}",
                    f"{row['other_cpu_pct']:.0f}",
                    "; ".join(said) or "–",
                ]
            )
    return "\n".join([*lines, "", *("| " + " | ".join(line) + " |" for line in table)])


def misses(rows: Iterable[Row]) -> list[str]:
    """Jobs whose full size took longer than it may."""
    return [row["kind"] for row in rows if row["kind"] in GOALS and _is_full(row) and _is_slow(row)]


def _is_slow(row: Row) -> bool:
    return bool(row["seconds"] > GOALS[row["kind"]].seconds)


def _is_full(row: Row) -> bool:
    return bool(row["rows"] >= GOALS[row["kind"]].rows * _FULL)


def _growth(few: Row, many: Row) -> float | None:
    """How many times as long ten times the rows take; None where the first took no time to speak of."""
    return None if few["seconds"] <= 0 else float(many["seconds"] / few["seconds"] / (many["rows"] / few["rows"]) * 10)


def _verdict(what: str, is_reached: bool) -> str:
    return f"{what} {'reached' if is_reached else '**missed**'}"


def _machine(row: Row) -> str:
    return (
        f"{says_when(row)}. {row['processor']}, {row['cores']} cores, {row['memory_gib']} GiB, {row['filesystem']}, "
        f"Linux {row['kernel']}, Python {row['python']}, PySpark {row['pyspark']}, {row['driver']} for the driver."
    )
