"""Verifies a folder of ledger files without Spark: no range is missing, repeated rows are equal, and in every range the
messages held before, plus those in, minus those out, are those held after.

Ranges of a partition are checked in the order of their files. Repeated ranges are compared with those seen before, as
many as a crash can repeat.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from backend_store.client import LEDGER_KINDS
from gateway.usage.files import Damaged, UsageFile, found, read
from gateway.usage.ledger_rows import HELD, PUBLISHED
from gateway.usage.schema import LedgerRow

RANGES_REMEMBERED: Final = 4_096
"""How many ranges of a partition are remembered for comparison; a crash may repeat the ranges of one file."""
VIOLATIONS_MAX: Final = 100
_KINDS: Final = frozenset({*LEDGER_KINDS, HELD})

PartitionKey = tuple[str, int, int]
"""(node, queue uid, partition)."""


class Broken(NamedTuple):
    """A violation, and its partition."""

    partition: str
    detail: str


class Range(NamedTuple):
    start: int
    end: int
    counts: dict[str, int]

    @property
    def flow(self) -> int:
        flows = {"in": 1, "out": -1, "told": 0}
        return sum(flows[LEDGER_KINDS[kind]] * count for kind, count in self.counts.items() if kind != HELD)


class Log:
    """One partition's ranges, in order."""

    def __init__(self, name: str):
        self.name = name
        self.end: int | None = None
        self.held = 0
        self.totals: Counter[str] = Counter()
        self._seen: OrderedDict[tuple[int, int], Range] = OrderedDict()

    def take(self, one: Range) -> Iterator[str]:
        """Checks the next range; yields the violations."""
        before = self._seen.get((one.start, one.end))
        if before is not None:
            if before != one:
                yield f"duplicate range {one.start} to {one.end}, with {before.counts} and with {one.counts}"
            return
        if self.end is not None and one.start != self.end:
            missing = "is missing" if one.start > self.end else "overlaps"
            yield f"{min(self.end, one.start)} to {max(self.end, one.start)} {missing}"
        elif self.end is None and one.start:
            self.held = one.counts.get(HELD, 0) - one.flow  # held before the first file begins
        if one.counts.get("unexplained"):
            yield f"{one.start} to {one.end}: {one.counts['unexplained']} unexplained messages"
        held = one.counts.get(HELD)
        if held is None or PUBLISHED not in one.counts:
            yield f"{one.start} to {one.end}: a row of the range is missing"
        elif self.held + one.flow != held:
            yield f"{one.start} to {one.end}: expected {self.held} {one.flow:+} messages, found {held}"
        self.end, self.held = one.end, held if held is not None else self.held + one.flow
        self.totals.update({kind: count for kind, count in one.counts.items() if kind != HELD})
        self._seen[one.start, one.end] = one
        if len(self._seen) > RANGES_REMEMBERED:
            self._seen.popitem(last=False)


class Report(NamedTuple):
    files: int
    rows: int
    logs: dict[PartitionKey, Log]
    broken: list[Broken]


def verify(folder: Path, *, told: Callable[[int], None] = lambda done: None) -> Report:
    """Reads every ledger file once. Raises `Damaged` and `OSError`."""
    files = sorted((f for f in found(folder) if f.kind == "ledger"), key=lambda f: (f.node, f.number, f.first, f.path))
    logs: dict[PartitionKey, Log] = {}
    broken: list[Broken] = []
    rows = 0
    for done, file in enumerate(files, 1):
        for key, name, one, count in _ranges(file):
            rows += count
            log = logs.setdefault(key, Log(name))
            for detail in log.take(one):
                if len(broken) < VIOLATIONS_MAX:
                    broken.append(Broken(log.name, detail))
        told(done)
    return Report(len(files), rows, logs, broken)


def _ranges(file: UsageFile) -> Iterator[tuple[PartitionKey, str, Range, int]]:
    """Yields a file's ranges; the rows of one range are adjacent."""
    last: tuple[PartitionKey, int, int] | None = None
    counts: dict[str, int] = {}
    name = ""
    for row in read(file):
        assert isinstance(row, LedgerRow)
        place = (row.node, row.queue_uid, row.partition), row.from_, row.to
        if place != last:
            if last is not None:
                yield last[0], name, Range(last[1], last[2], counts), len(counts)
            last, counts, name = place, {}, f"{row.tenant}/{row.queue}/{row.partition}"
        if row.kind not in _KINDS:
            detail = f'unknown kind "{row.kind}" of version {row.version}; verify it with a newer pushq'
            raise Damaged(f"{file.path}: {detail}")
        counts[row.kind] = row.count
    if last is not None:
        yield last[0], name, Range(last[1], last[2], counts), len(counts)
