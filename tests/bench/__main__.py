"""`python -m tests.bench`: runs scenarios in rounds, prints results as they come, and the tables at the end.

Rounds are the outermost loop, so that other activity on the machine disturbs all scenarios alike.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import uvloop

from tests.bench.baseline import baseline
from tests.bench.clients import ClientFailed
from tests.bench.count import COUNTED, NoCounter, count, counted_names
from tests.bench.machine import allow_many_sockets, choose_cores, describe, settle_on, wait_for_quiet
from tests.bench.page import write_page
from tests.bench.report import OTHERS_PCT_MAX, report
from tests.bench.rows import Row, append_row, read_rows
from tests.bench.scale import Scale
from tests.bench.scenario_against import NoCheckout, checkout
from tests.bench.scenarios import KNOWN, ONCE, PARTS, SCENARIOS, chosen, compared
from tests.bench.stamp import stamp
from tests.bench.world import ROOT, World

_SHOWN = (
    "rate", "cpu_s_per_100k", "server_cpu_pct", "generator_cpu_pct", "other_cpu_pct", "p50_ms", "p99_ms",
    "rate_usual", "kept_pct", "p99_ms_usual", "p99_more_pct", "rate_stored", "added_delivering_mib",
    "kib_per_connection", "added_mib", "slower_pct", "start_stored_s", "start_empty_s", "fdatasync_us", "commit_us",
)  # fmt: skip


def main() -> int:
    options = _options()
    if options.page:
        write_page()
        return 0
    if options.report is not None:
        print(report(read_rows(options.report), quiet_only=options.quiet_only), end="")
        return 0
    if options.count:
        return _count(options)
    try:
        against = options.against and checkout(options.against)
        asked = [*options.scenarios, *PARTS.get(options.only, [])]
        names = compared(asked) if against else chosen(asked)
    except (ValueError, NoCheckout) as error:
        print(error, file=sys.stderr)
        return 2
    scale = Scale(seconds=options.seconds, subscribers=options.subscribers, idle=options.idle, backlog=options.backlog)
    rows = run(
        names,
        scale,
        rounds=options.rounds,
        pin=options.pin,
        keep=options.json,
        folder=options.folder,
        patience_s=options.patience,
        against=against,
    )
    print(report(rows, quiet_only=options.quiet_only), end="")
    return 0


def _count(options: argparse.Namespace) -> int:
    """Counts instructions instead of rates, for this checkout and the one it is compared with."""
    try:
        against = options.against and checkout(options.against)
        names = counted_names(options.scenarios)
    except (ValueError, NoCheckout) as error:
        print(error, file=sys.stderr)
        return 2
    scale = Scale(seconds=options.seconds, subscribers=options.subscribers, idle=options.idle, backlog=options.backlog)
    world = World(scale, choose_cores(pin=options.pin), options.folder, 0.0, against)
    try:
        for name in names:
            own = count(COUNTED[name], world, ROOT)
            line = f"{name}: {own:,} instructions per message"
            if against:
                before = count(COUNTED[name], world, against)
                line += f", {before:,} in {options.against}: {100 * own / before:.0f}%"
            print(line, flush=True)
    except NoCounter as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _options() -> argparse.Namespace:
    usual = Scale()
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description="The benchmark of our own server.")
    parser.add_argument("scenarios", nargs="*", metavar="scenario", help=f"default: all of {', '.join(SCENARIOS)}")
    parser.add_argument("--only", choices=sorted(PARTS), help="plain queues, or the cost of their settings")
    parser.add_argument(
        "--against",
        type=Path,
        metavar="FOLDER",
        help="only compare plain queues with those of that checkout; with scenarios of duties: relate these to its "
        "rates without duties",
    )
    parser.add_argument(
        "--count",
        action="store_true",
        help="count the server's instructions per message instead of its rates, which needs Valgrind but no quiet "
        f"machine: {', '.join(COUNTED)}",
    )
    parser.add_argument("--rounds", type=int, default=3, help="of all scenarios that do not take turns anyway")
    parser.add_argument("--seconds", type=float, default=usual.seconds, help="of each measurement")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append the rows to this file, as JSON lines")
    parser.add_argument("--report", type=Path, metavar="FILE", help="only print the tables of such a file")
    parser.add_argument("--page", action="store_true", help="write the published runs to the documentation page")
    parser.add_argument("--no-pin", dest="pin", action="store_false", help="do not pin processes to cores")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where data is written")
    parser.add_argument("--subscribers", type=int, default=usual.subscribers, help="of the fan-out")
    parser.add_argument("--idle", type=int, default=usual.idle, help="idle connections")
    parser.add_argument("--backlog", type=int, default=usual.backlog, help="waiting messages")
    parser.add_argument(
        "--patience",
        type=float,
        default=0.0,
        metavar="S",
        help="wait up to this long for a quiet machine before each run, and repeat disturbed runs",
    )
    parser.add_argument("--quiet-only", action="store_true", help="report: only runs that were hardly disturbed")
    return parser.parse_args()


def run(
    names: Sequence[str],
    scale: Scale,
    *,
    rounds: int,
    pin: bool,
    folder: Path,
    keep: Path | None = None,
    patience_s: float = 0.0,
    against: Path | None = None,
) -> list[Row]:
    """Runs the scenarios. Raises if one loses, repeats or refuses a message."""
    if ONCE.issuperset(names):
        rounds = 1
    cores = choose_cores(pin=pin)
    allow_many_sockets()
    settle_on(0, cores.generator)
    world = World(scale, cores, folder, patience_s, against)
    rows: list[Row] = []
    _keep(
        rows,
        {
            "kind": "machine",
            **stamp(),
            "rounds": rounds,
            "patience_s": patience_s,
            **asdict(scale),
            **describe(folder, cores),
        },
        keep,
    )
    for number in range(1, rounds + 1):
        todo = [name for name in names if number == 1 or name not in ONCE]
        for name in ["baseline", *todo] if todo else []:
            began = time.monotonic()
            row = _patiently(name, world)
            _keep(rows, {"kind": name, "round": number, **row}, keep)
            _show(name, number, row, time.monotonic() - began)
    return rows


def _patiently(name: str, world: World) -> Row:
    """Repeats a disturbed run until the patience is used up."""
    deadline = time.monotonic() + world.patience_s
    while True:
        row = measure(name, world)
        if row["other_cpu_pct"] < OTHERS_PCT_MAX or time.monotonic() >= deadline:
            return row


def measure(name: str, world: World) -> Row:
    """One run of one scenario. Garbage collection is off meanwhile: the generator's pauses are not the server's."""
    gc.collect()
    gc.disable()
    try:
        return uvloop.run(_strictly(name, world))
    finally:
        gc.enable()


async def _strictly(name: str, world: World) -> Row:
    """Runs a scenario, and raises errors of callbacks, which the loop alone would only log."""
    failed: list[BaseException] = []

    def remember(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        failed.append(context.get("exception") or ClientFailed(context["message"]))

    asyncio.get_running_loop().set_exception_handler(remember)
    await wait_for_quiet(world.patience_s)
    try:
        row = await (baseline(world) if name == "baseline" else KNOWN[name].run(world))
    except Exception as error:
        raise (failed[0] if failed else error)
    if failed:
        raise failed[0]
    return row


def _keep(rows: list[Row], row: Row, keep: Path | None) -> None:
    rows.append(row)
    if keep is not None:
        append_row(keep, row)


def _show(name: str, number: int, row: Row, took_s: float) -> None:
    figures = " ".join(f"{figure}={_middle(row[figure]):g}" for figure in _SHOWN if figure in row)
    print(f"{number} {name:18} {took_s:5.1f} s  {figures}", file=sys.stderr, flush=True)


def _middle(value: float | list[float]) -> float:
    """The median of a figure that has one value per pair."""
    return statistics.median(value) if isinstance(value, list) else value


if __name__ == "__main__":
    sys.exit(main())
