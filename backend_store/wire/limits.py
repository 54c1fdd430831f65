"""Limits of the protocols between roles."""

from typing import Final

STRANGERS_MAX: Final = 256
"""Peers refused for their version that are remembered, so that each is logged once; beyond it the oldest are
forgotten."""
