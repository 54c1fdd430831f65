"""What forms of the console send, read field by field, and what the next page says about it."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from web_console.visit import Problem

_DURATION: Final = re.compile(r"(\d{1,12})(ms|s|m|h|d)?", re.ASCII)
_MS: Final = {None: 1, "ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

Form = dict[str, str]


class Done(NamedTuple):
    notice: str
    target: str | None = None
    """Where to go; None leads back."""
    secret: str | None = None
    """What is shown this once."""
    afterwards: str = "keeps only its hash"
    """What the server does with that."""
    is_bad: bool = False
    """It was done, and what came of it is bad."""


def wrong(detail: str) -> Problem:
    return Problem(400, "Invalid request", "invalid-request", detail)


def whole(form: Form, name: str) -> int | None:
    text = form.get(name, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise wrong(f"{name} is {text[:50]!r}; it is a whole number")
    return int(text)


def number(form: Form, name: str) -> float | None:
    text = form.get(name, "").strip()
    try:
        return float(text) if text else None
    except ValueError:
        raise wrong(f"{name} is {text[:50]!r}; it is a number") from None


def typed(form: Form, word: str) -> None:
    """What cannot be undone asks for the name of what it is done to."""
    if form.get("typed", "").strip() != word:
        raise wrong(f"type {word!r} to do this; nothing was done")


def given(form: Form, *names: str) -> dict[str, str]:
    return {name: form[name].strip() for name in names if form.get(name, "").strip()}


def duration(form: Form, name: str) -> int | None:
    """Milliseconds, as the command line takes them: `500`, `90s`, `15m`, `2h`, `7d`."""
    text = form.get(name, "").strip()
    if not text:
        return None
    found = _DURATION.fullmatch(text)
    if found is None:
        raise wrong(f"{name} is {text[:50]!r}; it is a time such as 500 (milliseconds), 90s, 15m, 2h or 7d")
    return int(found[1]) * _MS[found[2]]
