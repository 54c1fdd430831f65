"""Rows as Markdown: medians [least–most] over the rounds, beside the machine's baseline in the same run."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence

from tests.bench.rows import Row
from tests.bench.scenarios import KNOWN, ONCE, Table
from tests.bench.stamp import says

_NAMES = {
    "rate": "rate",
    "rate_without": "without a backlog",
    "slower_pct": "slower, %",
    "cpu_s_per_100k": "CPU s / 100,000",
    "server_cpu_pct": "server, %",
    "generator_cpu_pct": "generator, %",
    "other_cpu_pct": "others, %",
    "rss_anon_mib": "RssAnon, MiB",
    "p50_ms": "p50, ms",
    "p99_ms": "p99, ms",
    "p999_ms": "p99.9, ms",
    "kib_per_connection": "KiB per connection",
    "kib_per_reader": "per stream reader",
    "kib_per_consumer": "per consumer",
    "added_mib": "memory added, MiB",
    "added_delivering_mib": "added while delivering, MiB",
    "start_stored_s": "start with backlog, s",
    "start_empty_s": "start when empty, s",
    "rss_anon_started_mib": "RssAnon after that start, MiB",
    "rate_usual": "without",
    "kept_pct": "kept, %",
    "cpu_s_per_100k_usual": "CPU s / 100,000 without",
    "rate_stored": "stored/s",
    "cpu_s_per_100k_stored": "CPU s / 100,000 stored",
    "latest_ms": "latest, ms",
    "p50_ms_usual": "p50 at usual load, ms",
    "p99_ms_usual": "p99 at usual load, ms",
    "p99_more_pct": "p99 more, %",
    "back_s": "99 % reconnected after, s",
    "refused": "refused in the meantime",
    "load_before": "load before",
    "fdatasync_us": "fdatasync of 256 B, µs",
    "commit_us": "LMDB commit of 64 KiB, µs",
}
_PROCESSORS = ("cpu_s_per_100k", "server_cpu_pct", "generator_cpu_pct", "other_cpu_pct", "rss_anon_mib")
_LATENCIES = ("p50_ms", "p99_ms", "p999_ms")
_COLUMNS: dict[Table, tuple[str, ...]] = {
    "rates": ("rate", *_PROCESSORS),
    "latency": ("rate", *_LATENCIES, *_PROCESSORS),
    "fanout": ("rate", *_LATENCIES, *_PROCESSORS),
    "idle": ("kib_per_connection", "kib_per_reader", "kib_per_consumer", "rate", "rss_anon_mib"),
    "backlog": (
        "added_mib",
        "added_delivering_mib",
        "rate_without",
        "rate",
        "slower_pct",
        "start_stored_s",
        "rss_anon_started_mib",
        "start_empty_s",
    ),
    "settings": ("rate", "rate_usual", "kept_pct", "cpu_s_per_100k", "cpu_s_per_100k_usual", *_PROCESSORS[1:]),
    "duties": ("rate", "rate_usual", "kept_pct", "cpu_s_per_100k", "cpu_s_per_100k_usual", *_PROCESSORS[1:]),
    "scheduled": (
        "rate_stored",
        "cpu_s_per_100k_stored",
        "added_mib",
        "rate",
        "cpu_s_per_100k",
        "added_delivering_mib",
        *_PROCESSORS[1:-1],
    ),
    "exactness": ("rate", *_LATENCIES, "latest_ms", *_PROCESSORS[1:-1]),
    "fairness": ("rate", "p50_ms_usual", "p50_ms", "p99_ms_usual", "p99_ms", "p99_more_pct", *_PROCESSORS[1:-1]),
    "cluster": ("rate", *_LATENCIES, "server_cpu_pct", "generator_cpu_pct", "other_cpu_pct"),
    "against": ("rate", "rate_usual", "kept_pct", "cpu_s_per_100k", "cpu_s_per_100k_usual", *_PROCESSORS[1:]),
    "storm": ("rate", "back_s", "refused", "p50_ms", "p99_ms", "rss_anon_mib", "load_before"),
}
_TITLES: dict[Table, str] = {
    "rates": "Rates",
    "latency": "Latency",
    "fanout": "Fan-out to 500 WebSocket readers of a stream",
    "idle": "10,000 idle WebSocket connections",
    "backlog": "A backlog of 1,000,000 messages",
    "settings": "What a setting costs, alternating with a queue without it",
    "duties": "What front-end features cost, alternating with a server without them",
    "scheduled": "Scheduled messages",
    "exactness": "Delivery delay of scheduled messages",
    "fairness": "Effect of another queue at ten times its usual load",
    "cluster": "Three backends, etcd and one gateway on one machine",
    "storm": "Publishes during a mass reconnect",
    "against": "Compared with the other checkout, alternating",
}
OTHERS_PCT_MAX = 10
"""Percent of a core. A run of which others took more says as much about them; the kernel's disk work is in it, too."""
_WHOLE = {"server_cpu_pct", "generator_cpu_pct", "other_cpu_pct"}


def report(rows: Sequence[Row], *, quiet_only: bool = False) -> str:
    """The tables of a result file, its rounds taken together: all, or those whose run others hardly disturbed."""
    if quiet_only:
        rows = [row for row in rows if row.get("other_cpu_pct", 0) < OTHERS_PCT_MAX]
    has_duties = any(KNOWN[row["kind"]].table == "duties" for row in rows if row["kind"] in KNOWN)
    parts = [_machine([row for row in rows if row["kind"] == "machine"], has_duties=has_duties)]
    base = [row for row in rows if row["kind"] == "baseline"]
    if base:
        parts.append(_baseline_table(base))
    for table in _COLUMNS:
        names = [name for name, scenario in KNOWN.items() if scenario.table == table]
        found = {name: mine for name in names if (mine := [row for row in rows if row["kind"] == name])}
        if found:
            parts.append(_table(table, found, base))
    return "\n\n".join(part for part in parts if part) + "\n"


def _machine(machines: Sequence[Row], *, has_duties: bool) -> str:
    lines = []
    for machine in {repr(row): row for row in machines}.values():
        pinned = "generator on the first, server on the second" if machine["pinned"] else "nothing pinned"
        patience = f", made again for up to {machine['patience_s']:g} s when disturbed" if machine["patience_s"] else ""
        lines.append(
            f"{says(machine, has_duties=has_duties)} "
            f"{machine['processor']}, {machine['cores']} cores ({pinned}), {machine['memory_gib']} GiB, "
            f"{machine['filesystem']}, Linux {machine['kernel']}, Python {machine['python']}, {machine['packages']}; "
            f"{_rounds(machine['rounds'])}{_of(machine)}{patience}."
        )
    return "\n".join(lines)


def _of(machine: Row) -> str:
    """How long a round was, where that was set and not what came of it."""
    return f" of {machine['seconds']:g} s" if "seconds" in machine else ""


def _rounds(count: int) -> str:
    return f"{count} rounds" if count != 1 else "a round"


def _baseline_table(base: Sequence[Row]) -> str:
    columns = ("fdatasync_us", "commit_us", "rate", "cpu_s_per_100k", "other_cpu_pct")
    names = [_NAMES[column] if column != "rate" else "plain ASGI echo, msg/s" for column in columns]
    return _markdown("Baseline of the machine in the same run", names, [[_cell(base, column) for column in columns]])


def _table(table: Table, found: dict[str, list[Row]], base: Sequence[Row]) -> str:
    extras = _RATIOS.get(table, {}) if base else {}
    columns = _COLUMNS[table]
    unit = next(iter(found.values()))[0]["unit"]
    names = ["", *(_NAMES[c] if c != "rate" else unit for c in columns), *extras, "goal"]
    lines = []
    for name, rows in found.items():
        cells = [_cell(rows, column) for column in columns]
        lines.append([_sentence(name), *cells, *(ratio(rows, base) for ratio in extras.values()), _goals(name, rows)])
    return _markdown(_TITLES[table], names, lines)


def _sentence(name: str) -> str:
    return f"`{name}`: {KNOWN[name].says}"


def _cell(rows: Sequence[Row], figure: str) -> str:
    values = _values(rows, figure)
    if not values:
        return "–"
    middle = statistics.median(values)
    if figure in _WHOLE:
        return f"{middle:.0f}"
    show = _shower(max(map(abs, values)))
    if len(values) == 1 and rows[0]["kind"] in ONCE:
        return show(middle)
    return f"{show(middle)} [{show(min(values))}–{show(max(values))}]"


def _shower(largest: float) -> Callable[[float], str]:
    digits = 0 if largest >= 1000 else 1 if largest >= 100 else 2 if largest >= 1 else 3
    return lambda value: f"{value:,.{digits}f}"


def _goals(name: str, rows: Sequence[Row]) -> str:
    said = []
    for goal in KNOWN[name].goals:
        value = _median(rows, goal.figure)
        verdict = "reached" if goal.is_reached(value) else "**missed**"
        what = "" if goal.figure == "rate" else f"{_NAMES[goal.figure]} "
        said.append(f"{what}{'≥' if goal.is_least else '≤'} {goal.bound:,g} {verdict}")
    return "; ".join(said) or "–"


def _median(rows: Iterable[Row], figure: str) -> float:
    return float(statistics.median(_values(rows, figure)))


def _values(rows: Iterable[Row], figure: str) -> list[float]:
    """A row has one value, or one a pair."""
    found = [row[figure] for row in rows if row.get(figure) is not None]
    return [value for one in found for value in (one if isinstance(one, list) else [one])]


def _echoes(rows: Sequence[Row], base: Sequence[Row]) -> str:
    return f"{_median(rows, 'rate') / _median(base, 'rate'):.2f}"


def _per_commit(rows: Sequence[Row], base: Sequence[Row]) -> str:
    return f"{_median(rows, 'rate') * _median(base, 'commit_us') / 1e6:,.0f}"


def _in_commits(rows: Sequence[Row], base: Sequence[Row]) -> str:
    return f"{_median(rows, 'p50_ms') * 1e3 / _median(base, 'commit_us'):.2f}"


_RATIOS: dict[Table, dict[str, Callable[[Sequence[Row], Sequence[Row]], str]]] = {
    "rates": {"× echo": _echoes, "messages per commit time": _per_commit},
    "latency": {"p50 in commits": _in_commits},
    "fanout": {"× echo": _echoes},
}


def _markdown(title: str, names: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    head = [f"### {title}", "", "| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    return "\n".join([*head, *("| " + " | ".join(line) + " |" for line in lines)])
