"""What `pip install` brings: the wheel, in an environment that has nothing of this working copy."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.support.environment import without_settings
from tests.support.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
LEFT_OUT = shutil.ignore_patterns(".*", "tests", "build", "dist", "*.egg-info", "__pycache__", "pushq-data*", "*.mdb")
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
PROGRAM = """
import pathlib, pushq, push.client
from pushq import connect, Message, Unavailable
assert connect is push.client.connect and pushq.__all__ is push.client.__all__
print(pathlib.Path(pushq.__file__).parent)
"""


def run(command: list[str], folder: Path) -> str:
    ended = subprocess.run(
        command, cwd=folder, env=without_settings(), capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
    return ended.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the wheel. Nothing is asked of an index: what Pushq needs lies beside
    this test, and a `.pth` leads there without what is installed there by a `.pth` of its own."""
    folder = tmp_path_factory.mktemp("package")
    shutil.copytree(ROOT, folder / "source", symlinks=True, ignore=LEFT_OUT)
    offline = ["--no-index", "--no-deps"]
    run([*PIP, "wheel", *offline, "--no-build-isolation", "--wheel-dir", str(folder), "./source"], folder)
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv" / "bin" / "python"
    places = Path(run([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], folder).strip())
    (places / "needed.pth").write_text(sysconfig.get_path("purelib"))
    (wheel,) = folder.glob("*.whl")
    run([*PIP, "--python", str(python), "install", *offline, str(wheel)], folder)
    return python


def test_the_sdk_is_imported_by_the_name_it_is_installed_by_and_has_its_types(installed: Path, tmp_path: Path) -> None:
    place = Path(run([str(installed), "-c", PROGRAM], tmp_path).strip())
    assert place.is_relative_to(installed.parents[1])
    assert (place / "py.typed").is_file() and (place.parent / "push" / "py.typed").is_file()


def test_what_a_server_shows_and_runs_is_in_the_wheel(installed: Path, tmp_path: Path) -> None:
    (site,) = installed.parents[1].glob("lib/python*/site-packages")
    for file in (
        *("gateway/docs/README.md", "gateway/deploy/systemd/pushq.service", "gateway/templates/docs.html"),
        *("push/js/pushq.js", "push/js/pushq.d.ts", "throttling/gcra.lua", "web_console/static/docs.css"),
    ):
        assert (site / file).is_file(), file
    assert run([str(installed.with_name("pushq")), "--version"], tmp_path).startswith("pushq ")
