"""The page of a report: what it shows is escaped, has its units, and is drawn to scale."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from datetime import UTC, datetime
from typing import Any

import pytest

from spark.report import Column, Kind, Plot, Section, cell, page, plot
from spark.wording import counted

DAYS = ["2026-11-20", "2026-11-21"]


def drawn(figure: str) -> ElementTree.Element:
    return ElementTree.fromstring(figure[figure.index("<svg") : figure.index("</svg>") + 6])


def test_a_page_escapes_what_it_shows_and_says_what_it_does_not() -> None:
    bill = Section("Bill", "a & b", [Column("q", "<Queue>")], [["<script>"]], [], 1)
    made = page("<Usage>", "UTC", [bill, Section("Faults", "none", [Column("q", "Queue")], [])])
    assert "<script>" not in made and "&lt;script&gt;" in made and "a &amp; b" in made and "&lt;Queue&gt;" in made
    assert "1 more row is in the tables" in made and "<p>None.</p>" in made
    assert '<a href="#bill">' in made and '<h2 id="bill">' in made


def test_bars_are_to_scale_beside_an_axis_with_the_unit_and_a_legend() -> None:
    figure = plot(Plot("A day", "messages", DAYS, [("published", [600.0, 300.0]), ("read", [150.0, 0.0])]))
    assert "<figcaption>A day <span>(messages)</span>" in figure and 'class="legend"' in figure
    svg = drawn(figure)
    heights = [float(bar.attrib["height"]) for bar in svg.iter("rect")]
    assert heights[0] == 2 * heights[1] == pytest.approx(4 * heights[2]) and heights[3] == 0
    texts = [text.text for text in svg.iter("text")]
    assert texts == ["0", "150", "300", "450", "600", *DAYS]
    told = [title.text for title in svg.iter("title")]
    assert told == [
        f"{DAYS[0]}: 600 published",
        f"{DAYS[1]}: 300 published",
        f"{DAYS[0]}: 150 read",
        f"{DAYS[1]}: 0 read",
    ]
    assert 'class="legend"' not in plot(Plot("A day", "messages", DAYS, [("published", [6.0, 3.0])]))


def test_ranked_bars_have_their_names_and_values() -> None:
    svg = drawn(plot(Plot("Peaks", "a second", ["acme/" + "o" * 60, "b"], [("peak", [8.0, 2.0])], is_ranked=True)))
    long, short = (float(bar.attrib["width"]) for bar in svg.iter("rect"))
    assert long == 4 * short
    names = [text.text or "" for text in svg.iter("text")]
    assert names[0].endswith("…") and names[1:] == ["8", "b", "2"]


def test_of_many_labels_some_are_shown() -> None:
    days = [f"2026-{n:03}" for n in range(200)]
    svg = drawn(plot(Plot("A day", "messages", days, [("published", [1.0] * 200)])))
    assert len([text for text in svg.iter("text") if (text.text or "").startswith("2026-")]) == 10


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (1234567, "count", "1,234,567"),
        (2.5, "number", "2.50"),
        (0.0012345, "seconds", "0.0012"),
        (999, "bytes", "999 B"),
        (1_500_000, "bytes", "1.5 MB"),
        (-2e18, "bytes", "-2,000.0 PB"),
        (0.125, "share", "12.5 %"),
        (0.000123, "money", "0.00012"),
        (12.3, "money", "12.30"),
        (None, "days", "never"),
        (None, "count", "–"),
        (True, "yes", "yes"),
        (datetime(2026, 11, 20, 22, tzinfo=UTC), "time", "2026-11-20 22:00"),
    ],
)
def test_values_are_shown_as_people_read_them(value: Any, kind: Kind, text: str) -> None:
    assert cell(value, kind) == text


def test_one_is_singular() -> None:
    assert [counted(n, "message") for n in (0, 1, 2000)] == ["0 messages", "1 message", "2,000 messages"]
    assert counted(1, "entry", "entries") == "1 entry" and counted(2, "entry", "entries") == "2 entries"
