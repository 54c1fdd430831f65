"""Fields of the console's forms, checked and converted, and what the next page reports."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from web_console.visit import Finding, Problem

_NUMBER: Final = re.compile(r"-?\d{1,309}(\.\d{1,309})?", re.ASCII)
_ETAG: Final = re.compile(r'"[^"*,]+"')
_DURATION: Final = re.compile(r"(\d{1,12})(ms|s|m|h|d)?", re.ASCII)
_MS: Final = {None: 1, "ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

Form = dict[str, str]


class Done(NamedTuple):
    notice: str
    target: str | None = None
    """The address to go to; None leads back."""
    secret: str | None = None
    """A secret that is shown only now."""
    afterwards: str = "stores only a hash of it"
    """What the server keeps of the secret."""
    is_bad: bool = False
    """It was done, but with a bad outcome."""


def wrong(detail: str, field: str = "") -> Problem:
    """The error of a wrong form. `field`: the field beside which the form shows it."""
    findings = (Finding(f"/{field}", detail),) if field else ()
    return Problem(400, "Invalid request", "invalid-request", detail, findings=findings)


def whole(form: Form, name: str) -> int | None:
    text = form.get(name, "").strip()
    return whole_of(text, name) if text else None


def whole_of(text: str, name: str) -> int:
    """A number of digits alone: neither `1e4` nor `1_000`."""
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise wrong(f"{name} is {text[:50]!r}; use a whole number", name)
    return int(text)


def number(form: Form, name: str) -> float | None:
    text = form.get(name, "").strip()
    if not text:
        return None
    if _NUMBER.fullmatch(text) is None:
        raise wrong(f"{name} is {text[:50]!r}; use a number such as 1000 or 0.5", name)
    return float(text)


def version(form: Form) -> dict[str, str]:
    """The header that makes a change fail if the object is no longer as the form's page showed it."""
    etag = form.get("etag", "")
    if _ETAG.fullmatch(etag) is None:
        raise wrong("the form does not say which version it changes; open its page again")
    return {"if-match": etag}


def typed(form: Form, word: str) -> None:
    """Raises `Problem` unless the form has the word: an act that cannot be undone asks for the name of its object."""
    if form.get("typed", "").strip() != word:
        raise wrong(f"type {word!r} to confirm; nothing was changed", "typed")


def given(form: Form, *names: str) -> dict[str, str]:
    return {name: form[name].strip() for name in names if form.get(name, "").strip()}


def duration(form: Form, name: str) -> int | None:
    """A time in ms, as the command line takes it: `500`, `90s`, `15m`, `2h`, `7d`."""
    text = form.get(name, "").strip()
    if not text:
        return None
    found = _DURATION.fullmatch(text)
    if found is None:
        detail = f"{name} is {text[:50]!r}; use a duration such as 500 (milliseconds), 90s, 15m, 2h or 7d"
        raise wrong(detail, name)
    return int(found[1]) * _MS[found[2]]
