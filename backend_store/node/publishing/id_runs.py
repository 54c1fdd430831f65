"""Sorted runs of a partition's ids: answers look-ups, and writes, merges and deletes runs a few rows per commit.

The manifest names a new run only once all its rows are durable; until then the runs it replaces count, and from that
commit on they are garbage. So the manifest is complete after a crash at any commit.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import structlog

from backend_store.core.dedupe.dedupe import Bounds, Filter, Recent
from backend_store.core.dedupe.id_runs import (
    LEVEL_MAX,
    RECORD_BYTES,
    ROW_RECORDS_MAX,
    Build,
    Freeze,
    Known,
    Merge,
    Run,
    decode_manifest,
    encode_manifest,
    find,
    hashes_of,
    plan_merge,
)
from backend_store.storage.engine import Batch, Engine, Row, StorageCorrupt, Table
from backend_store.storage.keys import log_range
from backend_store.storage.seal import seal, unseal

log = structlog.get_logger("pushq.ids")

_MANIFEST = struct.Struct(">IB")
_RUN = struct.Struct(">IBI")


class _Filling(NamedTuple):
    """How far a run from before a restart has been put into the filter."""

    run: Run
    after: bytes


class IdRuns:
    """Look-ups are answered from committed runs; a commit's changes hold once it is durable."""

    def __init__(self, engine: Engine, replica: int, bounds: Bounds):
        self._engine = engine
        self._replica = replica
        self._bounds = bounds
        self._runs: list[Run] = []
        """Oldest first."""
        self._next = self._runs
        """The runs after the commit in flight."""
        self._builds: list[Build] = []
        self._number = 0
        """Number of the next run."""
        self._garbage: deque[int] = deque()
        """Numbers of runs whose rows are to be deleted."""
        self._dropped: list[int] = []
        """Becomes garbage after the next commit: the commit in flight still writes its rows, or replaces it."""
        self._filter = Filter(bounds)
        self._unfiltered: dict[int, Run] = {}
        """Runs not yet in the filter after a start. While there are any, the filter rules nothing out."""
        self._is_noted = False
        """The filter has had the ids of the dict that is being written since they came."""
        self._filling: _Filling | None = None
        self._unreadable: set[int] = set()
        """Runs with a row that does not verify: left as they are until their window is over."""
        self.count = 0
        """Ids in committed runs."""

    # --------------------------------------------------------------------------------------------------- questions

    def suspects(self, ids: Sequence[bytes | None]) -> set[bytes | None]:
        """Which of the ids may be in a run; the others are in none."""
        return set(ids) if self._unfiltered else self._filter.maybe(ids)

    def find(self, hash_: bytes, horizon_ms: int) -> Known | None:
        """The newest message with this hash after the horizon. Raises `StorageCorrupt`."""
        for run in reversed(self._where(hash_)):
            if run.newest_ms <= horizon_ms:
                continue
            start, end = run_key(self._replica, run.number, hash_), run_key(self._replica, run.number + 1)
            row = self._engine.first_at_or_above(Table.IDS, start, end)
            known = find(unseal(*row), hash_) if row is not None else None
            if known is not None and known.time_ms > horizon_ms:
                return known
        return None

    def _where(self, hash_: bytes) -> list[Run]:
        if self._unfiltered and not self._filter.maybe((hash_,)):
            return list(self._unfiltered.values())
        return self._runs

    def live(self, horizon_ms: int) -> int:
        """Ids in runs that are not wholly out of the window."""
        return sum(run.count for run in self._runs if run.newest_ms > horizon_ms)

    def next_expiry_ms(self) -> int | None:
        """Time of the newest id in the run that expires next; None if there are no runs."""
        return min((run.newest_ms for run in self._runs), default=None)

    @property
    def is_busy(self) -> bool:
        return bool(self._builds or self._garbage or self._dropped or self._is_fillable)

    @property
    def _is_fillable(self) -> bool:
        return bool(self._unfiltered) and not self._unfiltered.keys() <= self._unreadable

    # ------------------------------------------------------------------------------------------------ group commit

    def stage(self, batch: Batch, *, budget: int, rows_max: int, horizon_ms: int) -> bool:
        """Sorts or merges about `budget` ids and deletes `rows_max` rows. True if the frozen ids become a run."""
        assert self._next is self._runs, "one commit in flight at a time"
        self._expire(horizon_ms)
        is_frozen = False
        for build in list(self._builds):
            if budget > 0:
                budget -= self._advance(build, batch, budget)
                is_frozen = is_frozen or (build.level == 0 and build.source.is_done)
        if budget > 0 and self._is_fillable:
            self._fill(self._bounds.step_filter_ids)
        if self._garbage:
            self._sweep(batch, rows_max)
        if self._next is not self._runs:
            key = manifest_key(self._replica)
            batch.put(Table.IDS, key, seal(key, encode_manifest(self._next)))
        return is_frozen

    def committed(self) -> None:
        if self._next is not self._runs:
            kept = {run.number for run in self._next}
            self._dropped += [run.number for run in self._runs if run.number not in kept]
            self._unfiltered = {number: run for number, run in self._unfiltered.items() if number in kept}
            self._unreadable &= kept
            self._runs = self._next
            self.count = sum(run.count for run in self._runs)
            self._plan_merges()
        if self._dropped:
            self._garbage += self._dropped
            self._dropped = []

    def note(self, hashes: Sequence[bytes], *, stored: int, time_ms: int) -> None:
        """Puts ids into the filter on arrival. `stored`: ids of the partition in all."""
        self._filter.make_room(len(hashes), stored=stored, newest_ms=time_ms)
        self._filter.add(hashes)

    def freeze(self, recent: Recent, *, stored: int) -> None:
        """Starts to write a full dict as a run. `stored`: ids of the partition in all."""
        self._is_noted = recent.is_filtered
        if not recent.is_filtered:
            self._filter.make_room(len(recent), stored=stored, newest_ms=recent.newest_ms)
        source = Freeze(recent.records(self._bounds.take_ids_min))
        self._begin(0, source, level=0, oldest_ms=recent.oldest_ms, newest_ms=recent.newest_ms)

    def _expire(self, horizon_ms: int) -> None:
        if any(run.newest_ms <= horizon_ms for run in self._runs):
            # A run that is being merged is replaced by the merged one.
            merging = {run.number for build in self._builds for run in build.source.runs}
            kept = [run for run in self._runs if run.newest_ms > horizon_ms or run.number in merging]
            if len(kept) < len(self._runs):
                self._next = kept
        if not self._unfiltered and not any(build.level == 0 for build in self._builds):
            self._filter.expire(horizon_ms)

    def _plan_merges(self) -> None:
        """One merge per level at a time; none before the filter is complete, which helps look-ups more."""
        if self._is_fillable:
            return
        for level in range(LEVEL_MAX):
            if any(build.level == level + 1 for build in self._builds):
                continue
            runs = plan_merge(self._runs, level, count=self._bounds.runs_per_merge, avoid=self._unreadable)
            if runs:
                # In order of levels: many small runs cost a look-up more than a few big ones.
                place = sum(build.level <= level for build in self._builds)
                oldest_ms, newest_ms = min(run.oldest_ms for run in runs), max(run.newest_ms for run in runs)
                self._begin(place, Merge(runs), level=level + 1, oldest_ms=oldest_ms, newest_ms=newest_ms)

    def _begin(self, place: int, source: Freeze | Merge, *, level: int, oldest_ms: int, newest_ms: int) -> None:
        build = Build(source, number=self._number, level=level, oldest_ms=oldest_ms, newest_ms=newest_ms)
        self._builds.insert(place, build)
        self._number += 1

    def _advance(self, build: Build, batch: Batch, budget: int) -> int:
        """Writes some rows of an unfinished run; returns the number of ids processed."""
        source, taken = build.source, 0
        while taken < budget and not source.is_done:
            for stream in source.hungry():
                rows = self._read(stream.run, stream.after, self._bounds.read_rows)
                if rows is None:
                    self._builds.remove(build)
                    self._dropped.append(build.number)
                    return taken
                stream.feed(rows, is_last=len(rows) < self._bounds.read_rows)
            records = source.take()
            taken += max(len(records), self._bounds.take_ids_min)
            for part in build.cut(records):
                key, row = run_key(self._replica, build.number, part[-1]), b"".join(part)
                batch.put(Table.IDS, key, seal(key, row))
                if build.level == 0 and not self._is_noted:
                    self._filter.add(hashes_of(row))
        if source.is_done:
            self._finish(build)
        return taken

    def _finish(self, build: Build) -> None:
        """The run is complete: from this commit on it counts, and its sources do not."""
        self._builds.remove(build)
        merged = {run.number for run in build.source.runs}
        place = next((at for at, run in enumerate(self._next) if run.number in merged), len(self._next))
        rest = [run for run in self._next if run.number not in merged]
        self._next = [*rest[:place], build.run(), *rest[place:]]

    def _fill(self, budget: int) -> None:
        """After a start: puts the ids of runs into the filter, run by run."""
        while budget > 0 and self._is_fillable:
            run, after = self._filling or (None, b"")
            if run is None or run.number not in self._unfiltered:
                run, after = next(one for n, one in self._unfiltered.items() if n not in self._unreadable), b""
            limit = budget // ROW_RECORDS_MAX + 1
            rows = self._read(run, after, limit)
            self._filling = None
            if rows is None:
                continue
            for _, row in rows:
                self._filter.add(hashes_of(row))
            budget -= len(rows) * ROW_RECORDS_MAX
            if len(rows) < limit:
                del self._unfiltered[run.number]
            else:
                self._filling = _Filling(run, rows[-1][0] + b"\0")
        self._plan_merges()

    def _read(self, run: Run, after: bytes, limit: int) -> list[Row] | None:
        """A run's next rows, by the rest of their keys. None if one does not verify: then the run stays as it is."""
        start, end = run_key(self._replica, run.number, after), run_key(self._replica, run.number + 1)
        try:
            rows = self._engine.scan(Table.IDS, start, end, limit)
            return [(key[_RUN.size :], unseal(key, row)) for key, row in rows]
        except StorageCorrupt as error:
            self._unreadable.add(run.number)
            log.error("broken ids: publishes that may repeat one of them fail", reason=str(error), ids=run.count)
            return None

    def _sweep(self, batch: Batch, limit: int) -> None:
        number = self._garbage[0]
        start, end = run_key(self._replica, number), run_key(self._replica, number + 1)
        rows = self._engine.scan(Table.IDS, start, end, limit)
        for key, _ in rows:
            batch.delete(Table.IDS, key)
        if len(rows) < limit:
            self._garbage.popleft()

    # ----------------------------------------------------------------------------------------------------- at start

    def load(self) -> None:
        """Reads the runs that the last process stored. Raises `StorageCorrupt`."""
        key = manifest_key(self._replica)
        row = self._engine.get(Table.IDS, key)
        self._runs = self._next = decode_manifest(unseal(key, row)) if row is not None else []
        self.count = sum(run.count for run in self._runs)
        self._unfiltered = {run.number: run for run in self._runs}
        if self._runs:
            newest_ms = max(run.newest_ms for run in self._runs)
            self._filter.make_room(self.count, stored=self.count, newest_ms=newest_ms)
        self._garbage = deque(number for number in self._numbers() if number not in self._unfiltered)
        self._number = 1 + max((*self._unfiltered, *self._garbage), default=-1)

    def _numbers(self) -> Iterator[int]:
        """Numbers of all runs with rows, including those a crash left unfinished."""
        number, (_, end) = 0, id_range(self._replica)
        while row := self._engine.first_at_or_above(Table.IDS, run_key(self._replica, number), end):
            number = _RUN.unpack_from(row[0])[2]
            yield number
            number += 1


# --------------------------------------------------------------------------------------------------------------- keys


def id_range(replica: int) -> tuple[bytes, bytes]:
    """(start, end) of all IDS rows of a replica: deleted with the queue."""
    return log_range(replica)


def manifest_key(replica: int) -> bytes:
    return _MANIFEST.pack(replica, 0)


def run_key(replica: int, number: int, record: bytes = b"") -> bytes:
    """Key of the run's row that ends with `record`; with the beginning of a record, where to start the search for its
    row."""
    assert len(record) <= RECORD_BYTES + 1
    return _RUN.pack(replica, 2, number) + record
