"""Compiled files for Spark's Python workers: `python -m tests.tools.zips`.

Spark starts its workers with its own packages from zip files that have sources alone, so each of them would compile a
hundred modules anew, for most of a second. What workers import is put beside its source in the zip file of this
environment, once.
"""

from __future__ import annotations

import os
import py_compile
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

import pyspark

FOLDER = Path(pyspark.__file__).parent / "python" / "lib"
IMPORTED = """
import importlib, pkgutil, sys
import pyspark.daemon, pyspark.worker, pyspark.sql.worker, pyspark.sql.streaming.python_streaming_source_runner
for one in pkgutil.iter_modules(pyspark.sql.worker.__path__, "pyspark.sql.worker."):
    importlib.import_module(one.name)
for module in list(sys.modules.values()):
    print(getattr(module, "__file__", None) or "")
"""


def main() -> None:
    packed = sorted(FOLDER.glob("*.zip"))
    env = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, packed))}
    told = subprocess.run([sys.executable, "-c", IMPORTED], env=env, capture_output=True, text=True, check=True)
    imported = set(told.stdout.splitlines())
    for path in packed:
        add_compiled(path, sorted(one for one in imported if one.startswith(f"{path}/") and one.endswith(".py")))


def add_compiled(path: Path, sources: list[str]) -> None:
    """Puts what is compiled of `sources`, paths that begin with the zip file's, into it: as a whole or not at all."""
    if not sources:
        return
    replacement = path.with_name(f".{path.name}-{os.getpid()}")
    shutil.copyfile(path, replacement)
    with TemporaryDirectory() as folder, zipfile.ZipFile(replacement, "a") as archive:
        source, compiled = Path(folder) / "source.py", Path(folder) / "compiled.pyc"
        for one in sources:
            name = one.removeprefix(f"{path}/")
            source.write_bytes(archive.read(name))
            # Nobody looks whether it is of its source: both are of one release.
            how = py_compile.PycInvalidationMode.UNCHECKED_HASH
            py_compile.compile(str(source), str(compiled), dfile=one, doraise=True, invalidation_mode=how)
            archive.write(compiled, f"{name}c")
    replacement.replace(path)


if __name__ == "__main__":
    main()
