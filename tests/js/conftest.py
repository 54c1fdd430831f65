"""Node for the SDK's tests. Debian 12 has none that is new enough, so a machine without one says what it leaves out."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.support import prerequisites

NODE_MAJOR_MIN = 20


def _node() -> str | None:
    path = prerequisites.find("node")
    if path is None:
        return None
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False, timeout=20).stdout
    major = re.match(r"v(\d+)", said)
    return path if major and int(major[1]) >= NODE_MAJOR_MIN else None


NODE = _node()
collect_ignore_glob = [] if NODE else ["test_*.py"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if NODE is None:
        reason = f"needs Node {NODE_MAJOR_MIN} or later; the same module is tested in Chromium"
        terminalreporter.write_line(f"left out: tests/js {reason}")


@pytest.fixture
def node() -> str:
    """The path of a Node that is new enough."""
    assert NODE is not None
    return NODE
