"""`python small_map.py -m MODULE ARGUMENTS`: runs the module with stores that fit into the addresses left by Valgrind.

Normally a store is mapped with the terabyte that it may grow to. This is run as a file, so that it works with any
checkout.
"""

from __future__ import annotations

import os
import runpy
import sys
from functools import partial
from typing import Any

import lmdb

MAP_BYTES = 4 << 30


def _open(open_env: Any, *args: Any, map_size: int = MAP_BYTES, **settings: Any) -> Any:
    return open_env(*args, map_size=min(map_size, MAP_BYTES), **settings)


def main() -> None:
    lmdb.open = partial(_open, lmdb.open)
    sys.path[0] = os.getcwd()
    module, sys.argv = sys.argv[2], sys.argv[2:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
