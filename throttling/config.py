"""Bounds of the limiters."""

from __future__ import annotations

from typing import Final

PRINCIPALS_MAX: Final = 100_000
"""Principals with a state of their own; about 150 bytes each."""
