"""Numbers in sentences: singular and plural."""

from __future__ import annotations


def plural(count: float, one: str, many: str = "") -> str:
    """The noun for a count: `message` for 1, else `messages`, or `many` for an irregular plural."""
    return one if count == 1 else many or f"{one}s"


def counted(count: int, one: str, many: str = "") -> str:
    """`1 message`, `2 messages`; the number has no thousands separators."""
    return f"{count} {plural(count, one, many)}"


_SINGULAR = {"messages": "message", "replicas": "replica", "entries": "entry", "days": "day"}


def of_unit(unit: str, value: float) -> str:
    """A rule's unit after a number: `1 message`, `1 message/s`, `2 messages`."""
    word, slash, rest = unit.partition("/")
    return f"{_SINGULAR.get(word, word)}{slash}{rest}" if value == 1 else unit
