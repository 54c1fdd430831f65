"""Output of commands: data on stdout, messages for people on stderr; tables, JSON, and progress bars on terminals."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click

Advance = Callable[[int], None]
"""Called with the progress since the beginning."""


def put(text: str) -> None:
    """One line of data. Raises `Failure` where stdout takes none."""
    try:
        click.echo(text)
    except BrokenPipeError:
        raise
    except OSError as error:
        from gateway.commands.exits import Failure, os_text

        raise Failure(f"stdout: {os_text(error)}") from error


def require_stdout() -> None:
    """Raises `Failure` if stdout is closed: for commands whose output cannot be had again."""
    if sys.stdout is None:  # so Python represents a closed stdout
        from gateway.commands.exits import Failure

        raise Failure("stdout is closed")


@contextmanager
def shown_once(made: str, hint: str) -> Iterator[None]:
    """Around the output of a secret that was `made`: if stdout does not take it, raises a `Failure` that says so."""
    from gateway.commands.exits import Failure

    try:
        yield
    except (BrokenPipeError, Failure) as error:
        why = error.message if isinstance(error, Failure) else "stdout: its reader has exited"
        raise Failure(f"{made}, but its secret could not be shown: {why}", lines=[hint]) from error


def tell(text: str) -> None:
    """One line for the person at the terminal."""
    click.echo(text, err=True)


def put_json(value: Any) -> None:
    """One indented JSON document."""
    put(json.dumps(value, ensure_ascii=False, indent=2))


def json_line(value: Any) -> str:
    """One line of NDJSON, without its end."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def put_items(items: Sequence[Mapping[str, Any]]) -> None:
    """A whole list in the shape of the API's pages."""
    put_json({"items": list(items), "next": None})


def put_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Prints aligned columns, numbers to the right, never cut to a terminal's width: a pipe gets the same text.

    Without rows only the header is printed, which shows that the command found nothing.
    """
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(line[column]) for line in [list(header), *cells]) for column in range(len(header))]
    is_number = [all(isinstance(row[column], int | float) for row in rows) for column in range(len(header))]

    def line(values: Sequence[str]) -> str:
        padded = [
            value.rjust(width) if right else value.ljust(width)
            for value, width, right in zip(values, widths, is_number, strict=True)
        ]
        return "  ".join(padded).rstrip()

    put(click.style(line([name.upper() for name in header]), bold=True))
    for row in cells:
        put(line(row))


def put_fields(fields: Mapping[str, object]) -> None:
    """One object, a field per line."""
    width = max((len(name) for name in fields), default=0)
    for name, value in fields.items():
        put(f"{name.ljust(width)}  {value}")


def duration(ms: float) -> str:
    """A duration for people: `12 ms`, `3.4 s`, `5 min`, `2.5 h`, `3.0 d`."""
    for limit_ms, unit_ms, unit in ((1_000, 1, "ms"), (120_000, 1_000, "s"), (7_200_000, 60_000, "min")):
        if ms < limit_ms:
            return f"{ms:.0f} ms" if unit == "ms" else f"{ms / unit_ms:.3g} {unit}"
    hours = ms / 3_600_000
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} d"


def size(count: float) -> str:
    """Bytes for people: `512 B`, `1.5 KiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def rate(count: float, seconds: float) -> str:
    """`1,234/s`."""
    return f"{count / seconds:,.0f}/s" if seconds > 0 else "–"


@contextmanager
def progress(what: str, total: int | None) -> Iterator[Advance]:
    """A progress bar on stderr if that is a terminal; otherwise nothing is shown."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)


def confirm(question: str, *, is_sure: bool) -> None:
    """Asks before something is destroyed. Raises `Failure` unless the answer is yes or `is_sure`."""
    if is_sure:
        return
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort:
        agreed = False
        tell("")
    if not agreed:
        from gateway.commands.exits import Failure

        raise Failure("not confirmed, nothing changed; use --yes to skip the prompt")
