"""Rows of usage files for tests, and what a folder's ledger says."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from gateway.usage.schema import LedgerRow, MinuteRow
from gateway.usage.verify import Report, verify

NODE = "node-1"
AT = "2023-11-14T22:14:00.000Z"


def ledger_row(
    from_: int, to: int, kind: str = "published", count: int = 1, *, node: str = NODE, uid: int = 1, partition: int = 0
) -> LedgerRow:
    return LedgerRow(1, node, "default", "q", uid, partition, 1, kind, from_, to, count, None, AT)


def span(from_: int, to: int, held: int, **counts: int) -> list[LedgerRow]:
    """All rows of one range."""
    told = {"published": 0, **counts, "held": held}
    return [ledger_row(from_, to, kind, count) for kind, count in told.items()]


def minute_row() -> MinuteRow:
    return MinuteRow(
        1, NODE, AT, "default", "key", "q", "publish", "ws", "ok", 1, 100, 500, 0, 0.001, [1, *[0] * 7], False
    )


def ledger_of(folder: Path, queue: str) -> tuple[Counter[str], int, Report]:
    """What the files say of a queue: messages by kind, those that are there, and the report they come from."""
    report = verify(folder)
    mine = [log for log in report.logs.values() if log.name.split("/")[1] == queue]
    return sum((log.totals for log in mine), Counter()), sum(log.held for log in mine), report
