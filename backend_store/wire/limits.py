"""Bounds of what roles say to each other."""

from typing import Final

STRANGERS_MAX: Final = 256
"""Of those that were refused for their version: how many are remembered, so that the log tells each once; of more the
oldest are forgotten."""
