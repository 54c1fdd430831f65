"""Formats values for pages: sizes, ages, rates and small lines. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from backend_store.words import counted as counted
from backend_store.words import of_unit as of_unit
from backend_store.words import plural as plural

_BYTES = ("B", "KiB", "MiB", "GiB", "TiB")
LINE_WIDTH = 120
LINE_HEIGHT = 28


def number(value: float | None) -> str:
    if value is None:
        return "–"
    if value % 1:
        return f"{value:,.1f}".replace(",", "\u202f")
    return f"{int(value):,}".replace(",", "\u202f")


def decimal(value: float) -> str:
    """The number as a form accepts it back: digits alone, however large or small."""
    return f"{Decimal(f'{value:.15g}'):f}"


def percent(part: float) -> str:
    """A fraction of 1 as a percentage: `50%`."""
    return f"{part:.0%}" if part >= 0.01 or not part else f"{part:.1%}"


def size(value: float | None) -> str:
    if value is None:
        return "–"
    step = 0
    while value >= 1024 and step < len(_BYTES) - 1:
        value, step = value / 1024, step + 1
    return f"{value:.0f} {_BYTES[step]}" if step == 0 else f"{value:.1f} {_BYTES[step]}"


def age(ms: float | None) -> str:
    """The two largest units: `3 d 4 h`."""
    if ms is None:
        return "–"
    if ms < 1000:
        return f"{ms:.0f} ms"
    seconds = int(ms // 1000)
    for large, small, name, rest in ((86400, 3600, "d", "h"), (3600, 60, "h", "min"), (60, 1, "min", "s")):
        if seconds >= large:
            return f"{seconds // large} {name} {seconds % large // small} {rest}"
    return f"{seconds} s"


def duration(ms: float | None) -> str:
    """The time as a form accepts it back, exactly: `90s`, `5m`, `1500`."""
    if ms is None:
        return ""
    for of, name in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s")):
        if ms and ms % of == 0:
            return f"{ms // of:.0f}{name}"
    return f"{ms:.0f}"


def rate(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.0f}/s" if value >= 100 else f"{value:.1f}/s"


def cluster_state(cluster: Mapping[str, Any], managers: Mapping[str, Any]) -> str:
    """The state of a cluster; where no manager listens, `no manager` or `manager away` instead of `silent`."""
    if cluster["state"] != "silent" or not managers["is_silent"]:
        return str(cluster["state"])
    return "no manager" if managers["holder"] is None else "manager away"


def write(kind: str, value: Any) -> str:
    """A table's value as text."""
    if value is None:
        return "–"
    match kind:
        case "number":
            return number(value)
        case "bytes":
            return size(value)
        case "age":
            return age(value)
        case "rate":
            return rate(value)
        case "time":  # its column says that it is in UTC
            return str(value).replace("T", " ").removesuffix("Z").partition(".")[0]
        case "moment":
            return f"{str(value).replace('T', ' ').removesuffix('Z')} UTC"
        case _:
            return str(value)


def line_points(values: Sequence[float | None]) -> str:
    """The `points` of an SVG polyline; leaves out what was not measured."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return ""
    low, high = min(0.0, *known), max(known)
    span = (high - low) or 1.0
    step = LINE_WIDTH / max(1, len(values) - 1)
    return " ".join(
        f"{index * step:.1f},{LINE_HEIGHT - 2 - (value - low) / span * (LINE_HEIGHT - 4):.1f}"
        for index, value in enumerate(values)
        if value is not None
    )
