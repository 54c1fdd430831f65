"""The Python SDK under the name that it is installed by: `from pushq import connect`. It is `push.client`, all of it.

Installed, this folder is the package `pushq`; `pyproject.toml` says so.
"""

from push.client import *  # noqa: F403 - one list of what is public, in one place
from push.client import __all__ as __all__
