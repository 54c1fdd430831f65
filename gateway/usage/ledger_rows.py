"""Converts the counts of one ledger range to rows of a file: one for each kind."""

from __future__ import annotations

from collections.abc import Iterator

from backend_store.client import LEDGER_KINDS, LedgerCut, timestamp
from gateway.usage.schema import SCHEMA_VERSION, LedgerRow

PUBLISHED = "published"
HELD = "held"


def rows_of(cut: LedgerCut) -> Iterator[LedgerRow]:
    """`published` and `held` get a row in every range, so that a missing row is noticed."""
    sizes = {PUBLISHED: cut.published_bytes, "moved_in": cut.moved_in_bytes}
    for kind in LEDGER_KINDS:
        count = cut.counts.get(kind, 0)
        if count or kind == PUBLISHED:
            yield _row(cut, kind, count, sizes.get(kind))
    yield _row(cut, HELD, cut.held, cut.held_bytes)


def _row(cut: LedgerCut, kind: str, count: int, size: int | None) -> LedgerRow:
    return LedgerRow(
        SCHEMA_VERSION,
        cut.node,
        cut.tenant,
        cut.queue,
        cut.uid,
        cut.partition,
        cut.epoch,
        kind,
        cut.start,
        cut.end,
        count,
        size,
        timestamp(cut.at_ms),
    )
