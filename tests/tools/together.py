"""Which tests share a process where there are several, and what begins first: a file stays whole, lonely tests have one
process, and so has Spark.

For `--dist loadscope`; a scope is what stays together. What lasts longest begins first, so that at the end no process
waits for another one's long file.
"""

from __future__ import annotations

from typing import Any

from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

LONELY = ("cluster/", "contracts/test_coordin", "crash/", "overload/", "storm/")
"""Tests whose paths below `tests/` begin so: they keep the cores busy or watch the clock, so no two of them run at
once."""
ONE_SESSION_FOLDERS = ("spark",)
"""The first test of such a folder starts what the others share."""
ALONE = "alone"
WEIGHTS = {ALONE: 200.0, "spark": 100.0, "tests/browser/": 20.0, "tests/docs/": 20.0, "tests/js/": 10.0}
"""How long a test lasts, measured in others, by the beginnings of scopes."""


class Together(LoadScopeScheduling):  # type: ignore[misc]
    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        longest = max(self.workqueue, key=lambda scope: weight_of(scope, len(self.workqueue[scope])))
        self.workqueue.move_to_end(longest, last=False)
        super()._assign_work_unit(node)


def scope_of(test: str) -> str:
    """What a test stays together with; `test` is its id."""
    file = test.partition("::")[0]
    inside = file.removeprefix("tests/")
    if inside.startswith(LONELY):
        return ALONE
    folder = inside.partition("/")[0]
    return folder if folder in ONE_SESSION_FOLDERS else file


def weight_of(scope: str, tests: int) -> float:
    """How long a scope of so many tests lasts, measured in usual tests."""
    return tests * next((weight for name, weight in WEIGHTS.items() if scope.startswith(name)), 1.0)
