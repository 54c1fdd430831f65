"""What `pyproject.toml` cannot say: an editable install is found by paths. Everything else stands there.

setuptools writes an import hook for it, which no type checker follows: all that is imported from here would be `Any`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from setuptools import setup
from setuptools.command.editable_wheel import editable_wheel

ROOT = Path(__file__).resolve().parent
PATHS = (ROOT, ROOT / "push" / "import_name")
"""Where the packages lie; `pushq` is in the second."""


class EditableWheel(editable_wheel):
    def _run_build_commands(self, dist_name: str, unpacked_wheel: Any, *rest: Any) -> Any:
        Path(unpacked_wheel, "pushq_editable.pth").write_text("".join(f"{path}\n" for path in PATHS))
        return super()._run_build_commands(dist_name, unpacked_wheel, *rest)


setup(cmdclass={"editable_wheel": EditableWheel})
