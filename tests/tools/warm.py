"""Collects every test once, so that Python compiles each file once: `python -m tests.tools.warm`.

In a fresh clone each process of a run would compile them all, at the same time, and each of Spark's workers would do so
for ever (`tests/tools/zips.py`). It says nothing: what cannot be collected is told by the run that wants it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.tools.run import NO_BYTECODE

TESTS = Path(__file__).parent.parent
COLLECT = ("pytest", "-q", "--collect-only", "-p", "no:cacheprovider", str(TESTS))


def main() -> None:
    env = {name: value for name, value in os.environ.items() if name != NO_BYTECODE}
    for command in (COLLECT, ("tests.tools.zips",)):
        subprocess.run([sys.executable, "-m", *command], env=env, capture_output=True, check=False)


if __name__ == "__main__":
    main()
