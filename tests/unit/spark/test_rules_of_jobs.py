"""What keeps jobs fast on much data, seen in their text: nothing comes to the driver, and rows pass no Python."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SPARK = Path(__file__).resolve().parents[3] / "spark"
TO_THE_DRIVER = {"collect", "toPandas", "toLocalIterator", "take", "head", "first"}
THROUGH_PYTHON = {
    "udf",
    "pandas_udf",
    "mapInPandas",
    "mapInArrow",
    "applyInPandas",
    "foreach",
    "rdd",
    "UserDefinedFunction",
}
BOUNDED = {
    "anomalies.py": {"the last hour in the tables": "first", "RULES_MAX suggestions": "collect"},
    "audit_days.py": {"days": "collect", "a row a file and day": "collect", "the days of new files": "collect"},
    "capacity_plan.py": {"PROPOSALS_MAX queues": "collect", "PROPOSALS_MAX hot ones": "collect"},
    "delivery_audit.py": {"FAULTS_SHOWN_MAX faults": "take"},
    "live_page.py": {"the newest minute": "first"},
    "quick.py": {"a row a file": "collect"},
    "report.py": {
        "sums": "first",
        "RANKED_MAX queues": "collect",
        "RANKED_MAX costs": "collect",
        "ROWS_SHOWN_MAX rows": "collect",
        "POINTS_MAX days": "collect",
    },
    "usage_rollup.py": {"the days of new files": "collect"},
}
"""By file of a job, what comes to the driver: each is a row, or as many as a limit with a name says, or a row a day."""


def called(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            yield node.attr


@pytest.mark.parametrize("path", sorted((SPARK / "transforms").glob("*.py")), ids=lambda path: path.name)
def test_transforms_bring_nothing_to_the_driver_and_use_what_spark_has(path: Path) -> None:
    assert not (TO_THE_DRIVER | THROUGH_PYTHON) & set(called(path))


@pytest.mark.parametrize("path", sorted((SPARK / "jobs").glob("*.py")), ids=lambda path: path.name)
def test_what_jobs_bring_to_the_driver_is_bounded(path: Path) -> None:
    names = list(called(path))
    found = sorted(name for name in names if name in TO_THE_DRIVER)
    assert found == sorted(BOUNDED.get(path.name, {}).values())
    assert not THROUGH_PYTHON & set(names)
