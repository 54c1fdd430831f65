"""Fills a page's form with what was sent: typed values stay, and each error is shown at its field.

It works on the rendered page, so every form of the console keeps typed values without code of its own. Templates write
attributes in double quotes and escape their values.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator
from typing import Final

from web_console.forms import Form
from web_console.visit import Finding

_FORM: Final = r'<form\b[^>]*\saction="/console/do/{act}"[^>]*>.*?</form>'
_FIELD: Final = re.compile(r"<(input)\b([^>]*)>|<(select|textarea)\b([^>]*)>(.*?)</\3>", re.DOTALL)
_OPTION: Final = re.compile(r"<option\b([^>]*)>([^<]*)</option>")
_ATTRIBUTE: Final = re.compile(r'([^\s="]+)(?:="([^"]*)")?')
_OF_EACH_PAGE: Final = frozenset({"form_token", "back"})
_STATE: Final = "etag"
"""It stays as it was sent, too: what was typed is about that state of what it changes."""
_CALLED: Final = {"id": "message_id", "duration_ms": "minutes", "ends_at": "minutes", "confirm": "typed"}
"""Fields of requests whose form has another name for them."""

Attributes = dict[str, str | None]


def refilled(page: str, act: str, form: Form, findings: Iterable[Finding], *, is_stale: bool = False) -> str:
    """The page with its form of `act` filled; unchanged if it has no such form any more. `is_stale`: what the form
    changes was changed since, so that each field tells its present value where that differs."""
    for found in re.finditer(_FORM.format(act=re.escape(act)), page, re.DOTALL):
        fields = list(_fields(found[0]))
        if all(form.get(name) == of["value"] for name, of in fields if _is_fixed(name, of)):
            wrong = _at_fields(findings, {name for name, of in fields if of.get("type") != "hidden"})
            filled = _FIELD.sub(_Filling(form, wrong, is_stale), found[0])
            return _opened(page[: found.start()]) + filled + page[found.end() :]
    return page


def _fields(text: str) -> Iterator[tuple[str, Attributes]]:
    for found in _FIELD.finditer(text):
        of = _attributes(found[2] or found[4] or "")
        yield of.get("name") or "", of


def _is_fixed(name: str, of: Attributes) -> bool:
    """Whether a field identifies the form's object."""
    return of.get("type") == "hidden" and name not in _OF_EACH_PAGE and name != _STATE


def _opened(before: str) -> str:
    """Opens the part of the page that hides the form."""
    at = before.rfind("<details")
    if at < 0 or "</details>" in before[at:]:
        return before
    end = before.index(">", at)
    return before if " open" in before[at:end] else f"{before[:end]} open{before[end:]}"


def _at_fields(findings: Iterable[Finding], names: set[str]) -> dict[str, str]:
    """The errors by the form's field: `/max_attempts` is `set.max_attempts` in a form of settings."""
    found: dict[str, str] = {}
    for finding in findings:
        for part in reversed(finding.pointer.split("/")):
            here = [name for name in (part, f"set.{part}", _CALLED.get(part)) if name in names]
            if here:
                found.setdefault(here[0] or "", finding.detail)
                break
    return found


class _Filling:
    """Rewrites a form's fields, one after the other."""

    def __init__(self, form: Form, wrong: dict[str, str], is_stale: bool) -> None:
        self._form, self._wrong, self._is_stale = form, wrong, is_stale
        self._told = 0

    def __call__(self, found: re.Match[str]) -> str:
        tag, of, inner = found[1] or found[3], _attributes(found[2] or found[4] or ""), found[5]
        name = of.get("name") or ""
        if of.get("type") == "hidden":
            if name == _STATE and name in self._form:
                of["value"] = self._form[name]
            return _written(tag, of)
        said = self._wrong.pop(name, None)
        after = "" if said is None else self._marked(of, said)
        typed = self._form.get(name)
        if self._is_stale:
            after += _present(of, inner, typed)
        if of.get("type") in ("checkbox", "radio"):
            of.pop("checked", None)
            if typed is not None and typed == of.get("value", "on"):
                of["checked"] = None
        elif typed is not None and tag == "input":
            of["value"] = typed
        elif typed is not None and tag == "textarea":
            inner = "\n" + html.escape(typed)  # a first line break is not part of the text
        elif typed is not None:
            inner = _OPTION.sub(lambda option: _chosen(option, typed), inner)
        return _written(tag, of) + ("" if inner is None else f"{inner}</{tag}>") + after

    def _marked(self, of: Attributes, said: str) -> str:
        """Marks a field as wrong; the first such field gets the focus."""
        id_ = f"wrong-{self._told}"
        of["aria-invalid"] = "true"
        of["aria-describedby"] = " ".join(filter(None, (id_, of.get("aria-describedby"))))
        if not self._told:
            of["autofocus"] = None
        self._told += 1
        return f'<strong class="wrong" id="{id_}">{html.escape(said)}</strong>'


def _present(of: Attributes, inner: str | None, typed: str | None) -> str:
    """The present value of a field, if it is not what was typed."""
    if of.get("type") in ("checkbox", "radio"):
        was, is_on = typed is not None and typed == of.get("value", "on"), "checked" in of
        return "" if was == is_on else _now("on" if is_on else "off")
    if inner is None:
        now = of.get("value") or ""
    else:
        options = [(_attributes(one[1]), html.unescape(one[2]).strip()) for one in _OPTION.finditer(inner)]
        first = options[0][1] if options else html.unescape(inner)
        now = next((text for one, text in options if "selected" in one), first)
        typed = next((text for one, text in options if one.get("value") == typed), typed)
    return "" if typed is None or now.strip() == typed.strip() else _now(now.strip() or "empty")


def _now(value: str) -> str:
    return f'<span class="note">Now: {html.escape(value)}</span>'


def _chosen(option: re.Match[str], typed: str) -> str:
    of, text = _attributes(option[1]), option[2]
    of.pop("selected", None)
    value = of.get("value")
    if (html.unescape(text).strip() if value is None else value) == typed:
        of["selected"] = None
    return f"{_written('option', of)}{text}</option>"


def _attributes(text: str) -> Attributes:
    """A tag's attributes; None for one without a value."""
    return {one[1]: None if one[2] is None else html.unescape(one[2]) for one in _ATTRIBUTE.finditer(text)}


def _written(tag: str, of: Attributes) -> str:
    parts = (name if value is None else f'{name}="{html.escape(value)}"' for name, value in of.items())
    return f"<{' '.join((tag, *parts))}>"
