"""Rows of usage files for tests, and the contents of a folder's ledger."""

from __future__ import annotations

import json
import os
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gateway.usage.schema import AuditRow, LedgerRow, MinuteRow
from gateway.usage.verify import Report, verify

NODE = "node-1"
AT = "2023-11-14T22:14:00.000Z"


def ledger_row(
    from_: int, to: int, kind: str = "published", count: int = 1, *, node: str = NODE, uid: int = 1, partition: int = 0
) -> LedgerRow:
    return LedgerRow(1, node, "default", "q", uid, partition, 1, kind, from_, to, count, None, AT)


def span(from_: int, to: int, held: int, **counts: int) -> list[LedgerRow]:
    """All rows of one range."""
    kinds = {"published": 0, **counts, "held": held}
    return [ledger_row(from_, to, kind, count) for kind, count in kinds.items()]


def minute_row() -> MinuteRow:
    return MinuteRow(
        1, NODE, AT, "default", "key", "q", "publish", "ws", "ok", 1, 100, 500, 0, 0.001, [1, *[0] * 7], False
    )


def audit_row() -> AuditRow:
    return AuditRow(1, NODE, 1, AT, "default", "key", "me", "queues.put", "/v1/queues/q", "ok", 200, None, None, [])


def ledger_of(folder: Path, queue: str) -> tuple[Counter[str], int, Report]:
    """What the files report for a queue: messages by kind, messages held, and the report these come from."""
    report = verify(folder)
    mine = [log for log in report.logs.values() if log.name.split("/")[1] == queue]
    return sum((log.totals for log in mine), Counter()), sum(log.held for log in mine), report


def live_minute(minute: str, messages: int) -> dict[str, Any]:
    """A minute on the page that the job `live_usage` writes."""
    return {"row": "minute", "minute": minute, **_amounts(messages)}


def live_queue(queue: str, messages: int, operation: str = "publish", rows: int = 1) -> dict[str, Any]:
    """A queue's row on that page."""
    return {"row": "queue", "queue": queue, "operation": operation, "outcome": "ok", **_amounts(messages), "rows": rows}


def _amounts(messages: int) -> dict[str, Any]:
    return {"requests": 2, "messages": messages, "bytes_in": 100, "bytes_out": 0, "seconds": 0.5}


def write_live(
    folder: Path, tenants: Mapping[str, Sequence[dict[str, Any]]] | None, *, last_minute: str | None, at_ms: int
) -> Path:
    """A folder as that job writes it; without tenants, as in its initial state."""
    name = None if tenants is None else f"page-{uuid.uuid4().hex}"
    for tenant, rows in (tenants or {}).items():
        place = folder / "console" / str(name) / "tenants" / f"tenant={tenant}"
        place.mkdir(parents=True)
        (place / "part-00000-a.c000.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    now = folder / "console" / "now.json"
    now.parent.mkdir(parents=True, exist_ok=True)
    part = now.with_name("now.json.part")
    part.write_text(json.dumps({"version": 1, "folder": name, "last_minute": last_minute}))
    os.utime(part, (at_ms / 1000, at_ms / 1000))
    part.rename(now)
    return folder
