"""`pushq top`: what the queues hold and how fast they move, asked again and again."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from gateway.commands.asking import all_pages
from gateway.commands.base import command, json_option, run
from gateway.commands.figures import FigureRange
from gateway.commands.names import queue_names
from gateway.commands.output import duration, put_items, put_table
from gateway.commands.target import Target, target_options

if TYPE_CHECKING:
    from rich.table import Table

    from push.client import Admin

HEADER = ("queue", "ready", "in flight", "delayed", "published/s", "acked/s", "oldest", "consumers")
INTERVAL_S_MIN = 0.2
KEYS_BYTES_MAX = 64
TERMS_WITHOUT_SCREEN = ("dumb", "unknown")


class Sample(NamedTuple):
    """Every queue's numbers at one time."""

    at: float
    queues: Mapping[str, dict[str, Any]]


class Row(NamedTuple):
    """One queue between two samples."""

    queue: str
    ready: int
    in_flight: int
    delayed: int
    published_per_s: float
    acked_per_s: float
    oldest_age_ms: int
    consumers: int


@command("top")
@click.argument("names", metavar="[QUEUE]...", nargs=-1, shell_complete=queue_names)
@click.option("--interval", type=FigureRange(min=INTERVAL_S_MIN), default=1.0, show_default=True, help="Seconds.")
@click.option("--once", is_flag=True, help="Print one table, of one interval, and end.")
@target_options
@json_option
def top(names: tuple[str, ...], interval: float, once: bool, target: Target, as_json: bool) -> None:
    """Watch the queues, or those that are named; q ends.

    How much each holds, how fast it moves, how old its oldest message is. --json prints one list, too.
    """
    if once or as_json:
        rows = run(_once(target, names, interval))
        if as_json:
            put_items([row._asdict() for row in rows])
        else:
            put_table(HEADER, [_cells(row) for row in rows])
        return
    if not (sys.stdout.isatty() and sys.stdin.isatty()):
        raise click.UsageError("this is no terminal: --once prints one table")
    if os.environ.get("TERM", "").lower() in TERMS_WITHOUT_SCREEN:
        raise click.UsageError("this terminal has no screen to draw on (TERM): --once prints one table")
    run(_watch(target, names, interval))


def rows_of(before: Sample, after: Sample) -> list[Row]:
    """The queues of the later sample, the fullest first. One that is new, or was made anew, has moved nothing yet."""
    seconds = after.at - before.at
    rows = []
    for name, stats in after.queues.items():
        old = before.queues.get(name, stats)
        published, acked = (
            max(0, stats[field] - old[field]) / seconds if seconds > 0 else 0.0
            for field in ("published_total", "acked_total")
        )
        holds = (stats["ready"], stats["in_flight"], stats["delayed"])
        rows.append(Row(name, *holds, published, acked, stats["oldest_age_ms"], stats["consumers"]))
    return sorted(rows, key=lambda row: (-row.ready - row.in_flight, row.queue))


async def _once(target: Target, names: Sequence[str], interval: float) -> list[Row]:
    async with target.admin() as admin:
        before = await _sample(admin, names)
        await asyncio.sleep(interval)
        return rows_of(before, await _sample(admin, names))


async def _watch(target: Target, names: Sequence[str], interval: float) -> None:
    from rich.console import Console
    from rich.live import Live

    async with target.admin() as admin:
        sample = await _sample(admin, names)
        with _keys() as pressed, Live(_table([], target), console=Console(), screen=True, auto_refresh=False) as live:
            while not await _is_pressed(pressed, interval):
                before, sample = sample, await _sample(admin, names)
                live.update(_table(rows_of(before, sample), target), refresh=True)


async def _sample(admin: Admin, names: Sequence[str]) -> Sample:
    """Of all queues without names, but for those whose cluster is away. Raises the server's refusal where one of the
    names is no queue."""
    items = [await admin.get_queue(name) for name in names] if names else await all_pages(admin.list_queues)
    known = {item["name"]: item["stats"] for item in items if "stats" in item}
    return Sample(time.monotonic(), known)


@contextmanager
def _keys() -> Iterator[asyncio.Event]:
    """Set when q is pressed: keys come one by one and unseen until the end."""
    import termios
    import tty

    fd = sys.stdin.fileno()
    loop, pressed, before = asyncio.get_running_loop(), asyncio.Event(), termios.tcgetattr(fd)

    def read() -> None:
        # Past Python's buffer: what it holds back would not show as readable again.
        typed = os.read(fd, KEYS_BYTES_MAX)
        if not typed or b"q" in typed.lower():
            pressed.set()

    tty.setcbreak(fd)
    loop.add_reader(fd, read)
    try:
        yield pressed
    finally:
        loop.remove_reader(fd)
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


async def _is_pressed(pressed: asyncio.Event, seconds: float) -> bool:
    try:
        await asyncio.wait_for(pressed.wait(), seconds)
    except TimeoutError:
        return False
    return True


def _table(rows: list[Row], target: Target) -> Table:
    from rich.table import Table

    title = f"{target.base_url}  {time.strftime('%H:%M:%S')}  q ends"
    # With one space between columns a name of 19 characters is whole in 80 columns.
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, collapse_padding=True)
    table.add_column(HEADER[0], overflow="fold")
    for name in HEADER[1:]:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*map(str, _cells(row)))
    return table


def _cells(row: Row) -> list[object]:
    oldest = duration(row.oldest_age_ms) if row.ready or row.in_flight else "–"
    rates = (f"{row.published_per_s:,.0f}", f"{row.acked_per_s:,.0f}")
    return [row.queue, row.ready, row.in_flight, row.delayed, *rates, oldest, row.consumers]
