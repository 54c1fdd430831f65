"""Which tests share a process where there are several: a file stays whole, lonely folders have one process,
and so has Spark.

For `--dist loadscope`; a scope is what stays together.
"""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

LONELY_FOLDERS = ("cluster", "contracts", "crash", "overload", "storm")
"""Each of these keeps the cores busy or watches the clock, so no two of them run at once."""
ONE_SESSION_FOLDERS = ("spark",)
"""The first test of such a folder starts what the others share."""


class Together(LoadScopeScheduling):  # type: ignore[misc]
    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


def scope_of(test: str) -> str:
    """What a test stays together with; `test` is its id."""
    file = test.partition("::")[0]
    folder = file.removeprefix("tests/").partition("/")[0]
    return "alone" if folder in LONELY_FOLDERS else folder if folder in ONE_SESSION_FOLDERS else file
