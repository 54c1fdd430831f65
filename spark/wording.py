"""Formats numbers in sentences."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """1 message, 2,000 messages."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
