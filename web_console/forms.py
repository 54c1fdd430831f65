"""What forms of the console send, read field by field, and what the next page says about it."""

from __future__ import annotations

from typing import NamedTuple

from web_console.visit import Problem

Form = dict[str, str]


class Done(NamedTuple):
    notice: str
    target: str | None = None
    """Where to go; None leads back."""
    secret: str | None = None
    """What is shown this once."""


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
