"""Sections are found by their words, those with the words in a heading first, within bounds."""

from __future__ import annotations

from gateway.api.docs_search import EXCERPT_CHARS, SECTIONS_MAX, WORDS_MAX, Section, find, parts, section, words_of

PAGE = """# Leases

A lease ends.

## How long it `lasts`

As the *queue* says: [30 s](x.md).

```sh
# no heading
```

### Part
"""


def sections() -> list[Section]:
    return [section(f"/p#{number}", "Leases", heading, text) for number, (heading, text) in enumerate(parts(PAGE))]


def test_a_page_is_cut_at_its_headings_and_code_has_none() -> None:
    assert [heading for heading, _ in parts(PAGE)] == ["", "How long it `lasts`", "Part"]
    assert "# no heading" in parts(PAGE)[1][1]


def test_every_word_is_in_the_section_or_a_heading_above_it() -> None:
    assert [found.heading for found in find(sections(), "LASTS queue")] == ["How long it lasts"]
    assert find(sections(), "leases")[0].heading == ""
    assert find(sections(), "lasts nowhere") == []
    assert find(sections(), " ?! ") == []


def test_a_word_in_a_heading_counts_more_than_many_in_the_text() -> None:
    much, named = section("/a", "A", "", "ack " * 50), section("/b", "B", "ack", "")
    assert [found.address for found in find([much, named], "ack")] == ["/b", "/a"]


def test_the_excerpt_stands_around_the_word_and_has_no_signs_of_markdown() -> None:
    (found,) = find(sections(), "queue")
    assert "As the queue says: 30 s" in found.excerpt
    (found,) = find([section("/a", "A", "", "x " * 500 + "needle" + " y" * 500)], "needle")
    assert "needle" in found.excerpt and len(found.excerpt) <= EXCERPT_CHARS + 2


def test_questions_and_answers_have_bounds() -> None:
    assert len(words_of("a " * 1000)) == WORDS_MAX
    assert len(words_of("x" * 1000)[0]) < 100
    many = [section(f"/{number}", "A", "ack", "") for number in range(SECTIONS_MAX * 2)]
    assert len(find(many, "ack")) == SECTIONS_MAX
