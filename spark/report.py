"""HTML reports: one self-contained page of tables, with plots as inline SVG.

A plot has a title, its unit, an axis with round numbers, and a legend if it shows several series. Colour-blind readers
can tell the colours apart, on light and on dark backgrounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date, datetime
from html import escape
from typing import Any, Final, Literal, NamedTuple

from spark.wording import counted

WIDTH: Final = 860
HEIGHT: Final = 240
BAR_HEIGHT: Final = 24
ROWS_SHOWN_MAX: Final = 500
POINTS_MAX: Final = 1_000
SERIES_MAX: Final = 4
_LEFT: Final = 76
_TOP: Final = 12
_BOTTOM: Final = 26
_NAMES: Final = 240
"""Width of the labels in a plot with horizontal bars."""
_NAME_CHARS_MAX: Final = 34
_LABELS_MAX: Final = 10
_TICKS: Final = 4
_GAP: Final = 0.25

Kind = Literal["text", "count", "number", "bytes", "seconds", "money", "share", "days", "time", "yes"]
_RIGHT: Final = frozenset({"count", "number", "bytes", "seconds", "money", "share", "days"})
_BYTES: Final = ("B", "kB", "MB", "GB", "TB", "PB")

_STYLE = """
:root { --ink: #1d2733; --pale: #5b6878; --line: #d8dee6; --paper: #fff; --zebra: #f5f7fa;
  --s0: #2f6fb3; --s1: #d9822b; --s2: #6b5ca5; --s3: #2a9187; --bad: #b3261e }
@media (prefers-color-scheme: dark) { :root { --ink: #dfe6ee; --pale: #9aa8b8; --line: #313b47; --paper: #12171d;
  --zebra: #1a2129; --s0: #6ea8e0; --s1: #eba55b; --s2: #a99bdb; --s3: #5fc2b6; --bad: #ff8a80 } }
* { box-sizing: border-box }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; padding: 0 1.25rem; max-width: 64rem; color: var(--ink);
  background: var(--paper) }
h1 { font-size: 1.7rem; margin: 0 } h2 { font-size: 1.25rem; margin: 2.5rem 0 .25rem } p { margin: .25rem 0 .75rem }
nav { margin: .75rem 0; display: flex; flex-wrap: wrap; gap: .25rem 1rem } a { color: var(--s0) }
.pale, figcaption span { color: var(--pale) }
figure { margin: 1rem 0 } figcaption { font-weight: 600 } figcaption span { font-weight: 400 }
.legend { display: flex; gap: 1.25rem; font-size: 13px; margin: .25rem 0 }
.legend i { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: .4em }
svg { display: block; max-width: 100%; height: auto } svg text { font-size: 12px; fill: var(--pale) }
svg line { stroke: var(--line) } .s0 { fill: var(--s0) } .s1 { fill: var(--s1) } .s2 { fill: var(--s2) }
.s3 { fill: var(--s3) } i.s0 { background: var(--s0) } i.s1 { background: var(--s1) } i.s2 { background: var(--s2) }
i.s3 { background: var(--s3) }
.wide { overflow-x: auto; margin: 1rem 0 } table { border-collapse: collapse; font-size: 14px; min-width: 60% }
th, td { padding: .3rem .75rem; border-bottom: 1px solid var(--line); text-align: left; white-space: nowrap }
thead th { border-bottom-width: 2px; color: var(--pale); font-weight: 600; vertical-align: bottom; white-space: normal }
tbody tr:nth-child(even) { background: var(--zebra) } .n { text-align: right; font-variant-numeric: tabular-nums }
.bad { color: var(--bad); font-weight: 600 }
"""


class Column(NamedTuple):
    """`label` is the heading, including the unit."""

    name: str
    label: str
    kind: Kind = "text"


class Plot(NamedTuple):
    """`series` are names with one value per label. With `is_ranked`, the plot has horizontal bars of one series."""

    title: str
    unit: str
    labels: Sequence[str]
    series: Sequence[tuple[str, Sequence[float]]]
    is_ranked: bool = False


class Section(NamedTuple):
    title: str
    text: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    plots: Sequence[Plot] = ()
    hidden: int = 0
    """How many rows are not shown."""


def page(title: str, about: str, sections: Sequence[Section]) -> str:
    """The whole page, which says where rows are left out."""
    links = "".join(f'<a href="#{_id(one.title)}">{escape(one.title)}</a>' for one in sections)
    body = "".join(_section(section) for section in sections)
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style>"
    )
    top = f'<h1>{escape(title)}</h1><p class="pale">{escape(about)}</p><nav>{links}</nav>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{top}{body}</body></html>\n'


def plot(one: Plot) -> str:
    """A figure: title and unit, a legend if there are several series, and bars as SVG with their values as tooltips."""
    shown = one._replace(labels=one.labels[:POINTS_MAX], series=one.series[:SERIES_MAX])
    legend = ""
    if len(shown.series) > 1:
        names = "".join(f'<span><i class="s{n}"></i>{escape(name)}</span>' for n, (name, _) in enumerate(shown.series))
        legend = f'<div class="legend">{names}</div>'
    drawn = _ranked(shown) if shown.is_ranked else _columns(shown)
    caption = f"<figcaption>{escape(shown.title)} <span>({escape(shown.unit)})</span></figcaption>"
    return f"<figure>{caption}{legend}{drawn}</figure>"


def number(value: float) -> str:
    """A readable number: 1,234, or 1.25."""
    if value == int(value) or abs(value) >= 1_000:
        return f"{value:,.0f}"
    return f"{value:,.2f}" if abs(value) >= 0.01 else f"{value:.2g}"


def cell(value: Any, kind: Kind) -> str:
    """A value as text."""
    if value is None:
        return "never" if kind == "days" else "–"
    match kind:
        case "bytes":
            return _bytes(float(value))
        case "share":
            return f"{value * 100:.1f} %"
        case "money":
            return f"{value:,.2f}" if value == 0 or abs(value) >= 0.01 else f"{value:.2g}"
        case "days":
            return f"{value:,.0f}"
        case "yes":
            return "yes" if value else "no"
        case "time":
            return _time(value)
        case "text":
            return str(value)
        case "count" | "number" | "seconds":
            return number(value)


def _columns(one: Plot) -> str:
    """Vertical bars side by side, in the order of the labels."""
    most = _round_up(max((value for _, values in one.series for value in values), default=0.0))
    high, wide = HEIGHT - _TOP - _BOTTOM, (WIDTH - _LEFT) / max(1, len(one.labels))
    parts = []
    for n in range(_TICKS + 1):
        y = _TOP + high - high * n / _TICKS
        parts.append(f'<line x1="{_LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{_short(most * n / _TICKS)}</text>')
    each = wide * (1 - _GAP) / max(1, len(one.series))
    for number_, (name, values) in enumerate(one.series):
        for at, (label, value) in enumerate(zip(one.labels, values, strict=True)):
            tall = max(0.0, value) / most * high
            x = _LEFT + at * wide + wide * _GAP / 2 + number_ * each
            what = f"{label}: {number(value)}" + (f" {name}" if len(one.series) > 1 else "")
            box = f'x="{x:.1f}" y="{_TOP + high - tall:.1f}" width="{max(0.5, each):.1f}" height="{tall:.1f}"'
            parts.append(f'<rect class="s{number_}" {box}><title>{escape(what)}</title></rect>')
    every = math.ceil(len(one.labels) / _LABELS_MAX)
    for at in range(0, len(one.labels), max(1, every)):
        x = _LEFT + (at + 0.5) * wide
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 8}" text-anchor="middle">{escape(one.labels[at])}</text>')
    return _svg(one.title, HEIGHT, parts)


def _ranked(one: Plot) -> str:
    """Horizontal bars, each with its name to the left and its value to the right."""
    values = one.series[0][1]
    most = max(values, default=0.0) or 1.0
    room = WIDTH - _NAMES - _LEFT
    parts = []
    for n, (label, value) in enumerate(zip(one.labels, values, strict=True)):
        y, long = n * BAR_HEIGHT, max(0.0, value) / most * room
        shown = label if len(label) <= _NAME_CHARS_MAX else label[: _NAME_CHARS_MAX - 1] + "…"
        parts.append(f'<text x="{_NAMES - 8}" y="{y + 16}" text-anchor="end">{escape(shown)}</text>')
        box = f'x="{_NAMES}" y="{y + 3}" width="{long:.1f}" height="{BAR_HEIGHT - 6}"'
        tooltip = f"<title>{escape(label)}: {number(value)}</title>"
        parts.append(f'<rect class="s0" {box}>{tooltip}</rect>')
        parts.append(f'<text x="{_NAMES + long + 6:.1f}" y="{y + 16}">{number(value)}</text>')
    return _svg(one.title, max(1, len(one.labels)) * BAR_HEIGHT, parts)


def _svg(title: str, height: int, parts: Sequence[str]) -> str:
    box = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    return f'<svg role="img" aria-label="{escape(title)}" {box}>{"".join(parts)}</svg>'


def _round_up(value: float) -> float:
    """The next number whose quarters are round; 1 for 0 and below."""
    if value <= 0:
        return 1.0
    step = 10.0 ** math.floor(math.log10(value))
    return next(step * n for n in (1, 2, 4, 6, 8, 10) if step * n >= value)


def _short(value: float) -> str:
    """2.5 M: short enough for an axis label."""
    for unit, step in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= step:
            return f"{value / step:g} {unit}"
    return f"{value:g}"


def _bytes(value: float) -> str:
    for unit in _BYTES[:-1]:
        if abs(value) < 1_000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1_000
    return f"{value:,.1f} {_BYTES[-1]}"


def _time(value: object) -> str:
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M")
    return value.isoformat() if isinstance(value, date) else str(value)


def _id(title: str) -> str:
    return escape(title.lower().replace(" ", "-"))


def _section(section: Section) -> str:
    plots = "".join(plot(one) for one in section.plots if one.labels)
    more = f"<p>{counted(section.hidden, 'more row is', 'more rows are')} in the tables.</p>" if section.hidden else ""
    table = _table(section) if section.rows else "<p>None.</p>"
    title = f'<h2 id="{_id(section.title)}">{escape(section.title)}</h2>'
    return f"<section>{title}<p>{escape(section.text)}</p>{plots}{table}{more}</section>"


def _table(section: Section) -> str:
    head = "".join(f'<th scope="col"{_right(one.kind)}>{escape(one.label)}</th>' for one in section.columns)
    rows = "".join("<tr>" + "".join(map(_cell, row, section.columns)) + "</tr>" for row in section.rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _right(kind: Kind) -> str:
    return ' class="n"' if kind in _RIGHT else ""


def _cell(value: Any, column: Column) -> str:
    return f"<td{_right(column.kind)}>{escape(cell(value, column.kind))}</td>"
