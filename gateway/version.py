"""The running version, from the installed package."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("pushq")
except PackageNotFoundError:  # run from its sources, uninstalled
    VERSION = "0.1.0"
