"""Numbers in sentences."""

from __future__ import annotations


def plural(count: float, one: str, many: str = "") -> str:
    """The word for so many: `message` for 1, else `messages`, or `many` where that is another word."""
    return one if count == 1 else many or f"{one}s"


def counted(count: int, one: str, many: str = "") -> str:
    """`1 message`, `2 messages`: without spaces in the number."""
    return f"{count} {plural(count, one, many)}"


_SINGULAR = {"messages": "message", "replicas": "replica", "entries": "entry", "days": "day"}


def of_unit(unit: str, value: float) -> str:
    """A rule's unit behind a number: `1 message`, `1 message/s`, `2 messages`."""
    word, slash, rest = unit.partition("/")
    return f"{_SINGULAR.get(word, word)}{slash}{rest}" if value == 1 else unit
