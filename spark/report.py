"""Tables for people: one HTML page that needs nothing else, with plots as inline SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any, Final, NamedTuple

WIDTH: Final = 720
HEIGHT: Final = 180
_MARGIN: Final = 44
ROWS_SHOWN_MAX: Final = 500
POINTS_MAX: Final = 1_000

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; color: #1d2733; background: #fff }
table { border-collapse: collapse; margin: 1rem 0 } th, td { padding: .25rem .75rem; border-bottom: 1px solid #d8dee6 }
td.n { text-align: right; font-variant-numeric: tabular-nums } svg { max-width: 100%; height: auto }
@media (prefers-color-scheme: dark) { body { color: #dfe6ee; background: #12171d } th, td { border-color: #334 } }
"""


class Section(NamedTuple):
    title: str
    text: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    plot: Sequence[tuple[str, float]] = ()
    """Labels and values of bars, in order."""


def page(title: str, sections: Sequence[Section]) -> str:
    """The whole page. What is not shown is said."""
    body = "".join(_section(section) for section in sections)
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body><h1>{escape(title)}</h1>{body}</body></html>\n'


def bars(values: Sequence[tuple[str, float]], title: str) -> str:
    """Bars as SVG, named for those who cannot see them; the least and the most are written at the side."""
    shown = values[:POINTS_MAX]
    most = max((value for _, value in shown), default=0.0) or 1.0
    step = (WIDTH - _MARGIN) / max(1, len(shown))
    parts = []
    for n, (label, value) in enumerate(shown):
        high = max(0.0, value) / most * (HEIGHT - 40)
        x, y = _MARGIN + n * step, HEIGHT - 20 - high
        parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(1.0, step - 2):.1f}" height="{high:.1f}" fill="#2f6fb3">'
            f"<title>{escape(label)}: {number(value)}</title></rect>"
        )
    ends = [(_MARGIN, "start", shown[0][0]), (WIDTH, "end", shown[-1][0])] if shown else []
    texts = "".join(
        f'<text x="{x}" y="{HEIGHT - 4}" text-anchor="{anchor}" font-size="12" fill="currentColor">'
        f"{escape(label)}</text>"
        for x, anchor, label in ends
    )
    scale = f'<text x="0" y="30" font-size="12" fill="currentColor">{number(most)}</text>'
    return (
        f'<svg role="img" aria-label="{escape(title)}" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}">'
        f"{scale}{''.join(parts)}{texts}</svg>"
    )


def number(value: float) -> str:
    """1,234, or 1.25: as people read it."""
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 1_000 else f"{value:,.2f}"


def _section(section: Section) -> str:
    plot = bars(section.plot, section.title) if section.plot else ""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in section.columns)
    rows = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in section.rows[:ROWS_SHOWN_MAX])
    hidden = len(section.rows) - ROWS_SHOWN_MAX
    more = f"<p>{hidden:,} more rows are in the tables.</p>" if hidden > 0 else ""
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>" if section.rows else "<p>None.</p>"
    return f"<h2>{escape(section.title)}</h2><p>{escape(section.text)}</p>{plot}{table}{more}"


def _cell(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f'<td class="n">{number(value)}</td>'
    return f"<td>{escape('' if value is None else str(value))}</td>"
