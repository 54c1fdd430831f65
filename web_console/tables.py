"""Tables of the console: sorted, paged and exported on the server. Values only, no HTML."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlencode

import msgspec

from web_console.limits import EXPORT_ROWS_MAX, ROWS_PER_PAGE

Kind = Literal["text", "code", "number", "bytes", "age", "rate", "time", "state", "line"]
"""How a value is shown; `line` is a list of numbers."""


@dataclass(frozen=True, slots=True)
class Column:
    key: str
    label: str
    kind: Kind = "text"
    link: str | None = None
    """The key in the row of the address that the value links to."""
    is_sortable: bool = False


@dataclass(frozen=True, slots=True)
class Button:
    """An act on one row: a form of its own, opened before it is sent."""

    act: str
    label: str
    fields: Mapping[str, str]
    question: str
    """What it does, and whether it can be undone."""
    is_danger: bool = False
    word: str | None = None
    """The word to type before it is done."""
    inputs: tuple[tuple[str, str, str], ...] = ()
    """Further inputs: name, label, initial value."""


@dataclass(slots=True)
class Table:
    caption: str
    columns: Sequence[Column]
    rows: list[dict[str, Any]]
    empty: str
    """What an empty table says."""
    path: str = ""
    query: dict[str, str] = field(default_factory=dict)
    sort: str | None = None
    is_down: bool = False
    page: int = 1
    total: int = 0
    following: str | None = None
    """The cursor of the next page, if the server cuts the pages."""
    has_buttons: bool = False
    shown_max: int | None = None
    """Of a log: rows in sight; those behind them are shown on demand."""

    def address(self, **changes: str | None) -> str:
        """The address of this table's page with some query parameters changed; None leaves a parameter out."""
        query = {name: value for name, value in {**self.query, **changes}.items() if value not in (None, "")}
        return f"{self.path}?{urlencode(query)}" if query else self.path

    def sort_address(self, column: Column) -> str:
        is_down = not self.is_down if self.sort == column.key else column.kind != "text"
        return self.address(sort=("-" if is_down else "") + column.key, page=None)

    @property
    def pages(self) -> int:
        return max(1, -(-self.total // ROWS_PER_PAGE))


def cut(table: Table, query: Mapping[str, str], *, default: str) -> Table:
    """Sorts the table as the query asks, and sets its page. An unknown column falls back to the default."""
    wanted = query.get("sort", default)
    key, is_down = wanted.removeprefix("-"), wanted.startswith("-")
    if key not in {column.key for column in table.columns if column.is_sortable}:
        key, is_down = default.removeprefix("-"), default.startswith("-")
    table.rows.sort(key=lambda row: _rank(row.get(key)), reverse=is_down)
    table.sort, table.is_down, table.total = key, is_down, len(table.rows)
    page = query.get("page", "1")
    number = int(page) if page.isascii() and page.isdigit() and len(page) < 9 else 1
    table.page = min(max(1, number), table.pages)
    return table


def page_of(table: Table) -> list[dict[str, Any]]:
    start = (table.page - 1) * ROWS_PER_PAGE
    return table.rows[start : start + ROWS_PER_PAGE]


def _rank(value: Any) -> tuple[int, Any]:
    """A sort key with numbers before texts, so that any two values can be compared."""
    if value is None:
        return 0, 0
    return (1, value) if isinstance(value, int | float) else (2, str(value).casefold())


def as_json(table: Table) -> bytes:
    return msgspec.json.encode({"items": [_plain(table, row) for row in table.rows[:EXPORT_ROWS_MAX]]})


def as_csv(table: Table) -> str:
    """RFC 4180. A text that a spreadsheet would take for a formula gets an apostrophe before it."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow([column.key for column in _exported(table)])
    for row in table.rows[:EXPORT_ROWS_MAX]:
        writer.writerow([_cell(value) for value in _plain(table, row).values()])
    return out.getvalue()


def _plain(table: Table, row: dict[str, Any]) -> dict[str, Any]:
    return {column.key: row.get(column.key) for column in _exported(table)}


def _exported(table: Table) -> list[Column]:
    """The exported columns: all but lines, which only the shown rows have."""
    return [column for column in table.columns if column.kind != "line"]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return f"'{text}" if isinstance(value, str) and text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
