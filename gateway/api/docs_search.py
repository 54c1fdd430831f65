"""Full-text search of the documentation for `/docs/search`. Pure: text of pages in, sections out.

A page is split at its headings. A section matches if it has every word of the question, in its text, its heading or
its page's title; sections with more of the words in a heading come first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

WORDS_MAX: Final = 8
"""Words of one question; further ones are ignored."""
WORD_CHARS_MAX: Final = 64
SECTIONS_MAX: Final = 40
"""Sections in one answer."""
EXCERPT_CHARS: Final = 160

_HEADING = re.compile(r"(#{1,6}) +(.+)")
_WORD = re.compile(r"[\w.\-/]+")
_SIGNS = re.compile(r"[`*|#\[\]]|\]\([^)]*\)")


class Section(NamedTuple):
    """The part of a page below one heading. `address`: its URL path."""

    address: str
    page: str
    heading: str
    text: str
    headings_lower: str
    text_lower: str


class Found(NamedTuple):
    address: str
    page: str
    heading: str
    excerpt: str


def parts(text: str) -> list[tuple[str, str]]:
    """(heading, text below it) for each part of a page; the heading of the part below the title is "". Lines in code
    blocks are not headings."""
    found: list[tuple[str, list[str]]] = [("", [])]
    is_code = False
    for line in text.splitlines():
        is_code ^= line.startswith("```")
        heading = None if is_code else _HEADING.match(line)
        if heading is None:
            found[-1][1].append(line)
        elif heading[1] != "#":
            found.append((heading[2].strip(), []))
    return [(heading, "\n".join(lines)) for heading, lines in found]


def section(address: str, page: str, heading: str, text: str) -> Section:
    """Makes a section from Markdown, of which only the words are kept."""
    plain = " ".join(_SIGNS.sub(" ", text).split())
    shown = heading.replace("`", "")
    return Section(address, page, shown, plain, f"{page} {shown}".lower(), plain.lower())


def words_of(question: str) -> list[str]:
    """The words of a question in lower case, cut to the bounds."""
    return [word[:WORD_CHARS_MAX].lower() for word in _WORD.findall(question)[:WORDS_MAX]]


def find(sections: Iterable[Section], question: str) -> list[Found]:
    """The sections with all words of the question, the best first; empty for a question without words."""
    words = words_of(question)
    if not words:
        return []
    ranked = [
        (sum(word in one.headings_lower for word in words), one)
        for one in sections
        if all(word in one.headings_lower or word in one.text_lower for word in words)
    ]
    ranked.sort(key=lambda found: found[0], reverse=True)
    return [Found(one.address, one.page, one.heading, _excerpt(one, words)) for _, one in ranked[:SECTIONS_MAX]]


def _excerpt(one: Section, words: list[str]) -> str:
    """The text around the first of the words that it has."""
    places = [place for word in words if (place := one.text_lower.find(word)) >= 0]
    start = max(0, min(places, default=0) - EXCERPT_CHARS // 3)
    part = one.text[start : start + EXCERPT_CHARS]
    return ("…" if start else "") + part + ("…" if start + EXCERPT_CHARS < len(one.text) else "")
