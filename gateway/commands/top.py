"""`pushq top`: a live view of what queues hold and how fast they move, or of the backends, by polling."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import click

from gateway.commands.asking import all_pages
from gateway.commands.base import command, json_option, run
from gateway.commands.exits import Failure
from gateway.commands.figures import FigureRange
from gateway.commands.names import queue_names
from gateway.commands.output import duration, put_items, put_table, size
from gateway.commands.target import Target, target_options

if TYPE_CHECKING:
    from rich.table import Table

    from push.client import Admin

HEADER = ("queue", "ready", "in flight", "delayed", "published/s", "acked/s", "oldest", "consumers")
NODES_HEADER = ("backend", "alive", "leads", "in sync", "lag", "disk used", "disk", "asked")
INTERVAL_S_MIN = 0.2
KEYS_BYTES_MAX = 64
TERMS_WITHOUT_SCREEN = ("dumb", "unknown")


class Sample(NamedTuple):
    """The stats of all queues at one time."""

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


class Node(NamedTuple):
    """One backend, as a gateway knows it from the cluster."""

    node: str
    alive: bool
    leads: int
    copies: int
    in_sync: int
    """How many of its copies are in sync."""
    lag_entries: int
    """Log entries that its furthest-behind copy lacks, as far as leaders know."""
    disk_used_bytes: int | None
    disk_free_bytes: int | None
    asked: str
    """"to leave", "to drain" or ""."""


@command("top")
@click.argument("names", metavar="[QUEUE]...", nargs=-1, shell_complete=queue_names)
@click.option("--interval", type=FigureRange(min=INTERVAL_S_MIN), default=1.0, show_default=True, help="Seconds.")
@click.option("--backends", is_flag=True, help="Show backends instead of queues; requires the scope operator.")
@click.option(
    "--cluster", "of", metavar="NAME", help="With --backends: the cluster to show.  [default: the home cluster]"
)
@click.option("--once", is_flag=True, help="Print one table, measured over one interval, and exit.")
@target_options
@json_option
def top(
    names: tuple[str, ...],
    interval: float,
    backends: bool,
    of: str | None,
    once: bool,
    target: Target,
    as_json: bool,
) -> None:
    """Watch all queues, or the named ones; press q to quit.

    Shows how much each queue holds, its throughput and the age of its oldest message. With --backends: how many shards
    each backend leads, how many of its copies are in sync, and their lag. --json also prints a single list.
    """
    if backends and names:
        raise click.UsageError("--backends and QUEUE are mutually exclusive")
    if of is not None and not backends:
        raise click.UsageError("--cluster requires --backends")
    if once or as_json:
        if backends:
            nodes = nodes_of(run(_cluster_once(target, of)))
            if as_json:
                put_items([node._asdict() for node in nodes])
            else:
                put_table(NODES_HEADER, [_node_cells(node) for node in nodes])
            return
        rows = run(_once(target, names, interval))
        if as_json:
            put_items([row._asdict() for row in rows])
        else:
            put_table(HEADER, [_cells(row) for row in rows])
        return
    if not (sys.stdout.isatty() and sys.stdin.isatty()):
        raise click.UsageError("stdout is not a terminal: use --once to print one table")
    if os.environ.get("TERM", "").lower() in TERMS_WITHOUT_SCREEN:
        raise click.UsageError("the terminal (TERM) does not support full-screen output: use --once to print one table")
    run(_watch_cluster(target, of, interval) if backends else _watch(target, names, interval))


def rows_of(before: Sample, after: Sample) -> list[Row]:
    """The queues of the later sample, the fullest first. A queue that is new, or was created anew, has rates of 0."""
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


def nodes_of(state: Mapping[str, Any]) -> list[Node]:
    """The backends of `/v1/cluster`: those that are down first, then those that are furthest behind."""
    found = []
    for node in state["nodes"]:
        name = node["name"]
        kept = [shard for shard in state["shards"] if name in shard["replicas"]]
        found.append(
            Node(
                name,
                node["alive"],
                sum(shard["leader"] == name for shard in state["shards"]),
                len(kept),
                sum(name in shard["in_sync"] for shard in kept),
                max((shard["lag"].get(name) or 0 for shard in kept), default=0),
                node["disk_used_bytes"],
                node["disk_free_bytes"],
                "leaving" if node["removing"] else "draining" if node["draining"] else "",
            )
        )
    return sorted(found, key=lambda node: (node.alive, node.in_sync - node.copies, -node.lag_entries, node.node))


async def _cluster_once(target: Target, of: str | None) -> dict[str, Any]:
    async with target.admin() as admin:
        return await _state(admin, of)


async def _state(admin: Admin, of: str | None) -> dict[str, Any]:
    """The cluster's state. Raises the server's refusal, and `Failure` if the server does not know the backends."""
    query = "" if of is None else f"?cluster={quote(of, safe='')}"
    found: dict[str, Any] = await admin.ask("GET", f"/v1/cluster{query}")
    if not found.get("backends_known", True):
        raise Failure("this server has no cluster view: start it with cluster.coordinator = etcd://HOST:PORT")
    return found


async def _watch_cluster(target: Target, of: str | None, interval: float) -> None:
    from rich.console import Console
    from rich.live import Live

    async with target.admin() as admin:
        cells = [_node_cells(node) for node in nodes_of(await _state(admin, of))]
        with _keys() as pressed, Live(console=Console(), screen=True, auto_refresh=False) as live:
            live.update(_drawn(NODES_HEADER, cells, target), refresh=True)
            while not await _is_pressed(pressed, interval):
                cells = [_node_cells(node) for node in nodes_of(await _state(admin, of))]
                live.update(_drawn(NODES_HEADER, cells, target), refresh=True)


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
        with (
            _keys() as pressed,
            Live(_drawn(HEADER, [], target), console=Console(), screen=True, auto_refresh=False) as live,
        ):
            while not await _is_pressed(pressed, interval):
                before, sample = sample, await _sample(admin, names)
                cells = [_cells(row) for row in rows_of(before, sample)]
                live.update(_drawn(HEADER, cells, target), refresh=True)


async def _sample(admin: Admin, names: Sequence[str]) -> Sample:
    """The stats of the named queues, or of all except those whose cluster is unreachable. Raises the server's refusal
    if a name is not a queue."""
    items = [await admin.get_queue(name) for name in names] if names else await all_pages(admin.list_queues)
    known = {item["name"]: item["stats"] for item in items if "stats" in item}
    return Sample(time.monotonic(), known)


@contextmanager
def _keys() -> Iterator[asyncio.Event]:
    """Yields an event that is set when q is pressed. Until the end keys come one by one, without echo."""
    import termios
    import tty

    fd = sys.stdin.fileno()
    loop, pressed, before = asyncio.get_running_loop(), asyncio.Event(), termios.tcgetattr(fd)

    def read() -> None:
        # Bypasses Python's buffer: a key held back in it would not make the descriptor readable again.
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


def _drawn(header: Sequence[str], rows: Sequence[Sequence[object]], target: Target) -> Table:
    from rich.table import Table

    title = f"{target.base_url}  {time.strftime('%H:%M:%S')}  q quits"
    # With one space between columns a name of 19 characters fits into 80 columns.
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, collapse_padding=True)
    table.add_column(header[0], overflow="fold")
    for name in header[1:]:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*map(str, row))
    return table


def _node_cells(node: Node) -> list[object]:
    used, free = node.disk_used_bytes, node.disk_free_bytes
    is_known = used is not None and free is not None and used + free > 0
    return [
        node.node,
        "yes" if node.alive else "no",
        node.leads,
        f"{node.in_sync} of {node.copies}",
        node.lag_entries,
        "–" if used is None else size(used),
        f"{used / (used + free):.0%}" if is_known and used is not None and free is not None else "–",
        node.asked or "–",
    ]


def _cells(row: Row) -> list[object]:
    oldest = duration(row.oldest_age_ms) if row.ready or row.in_flight else "–"
    rates = (f"{row.published_per_s:,.0f}", f"{row.acked_per_s:,.0f}")
    return [row.queue, row.ready, row.in_flight, row.delayed, *rates, oldest, row.consumers]
