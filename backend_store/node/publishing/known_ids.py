"""The dedupe index of a partition: which message ids and idempotency keys it has seen.

`add` puts an id into a dict, `stage` into an arrival row of the commit that stores its message. A full dict is frozen
and written as a sorted run, a few rows per commit (`id_runs`); its arrival rows are deleted in the commit that
completes the run. Runs are merged, and deleted when their window is over. A purge keeps the ids: a retry of a purged
message must not bring it back.
"""

from __future__ import annotations

import struct
from array import array
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, cast

from backend_store.core.dedupe.dedupe import Bounds, Recent
from backend_store.core.dedupe.id_runs import (
    HASH_BYTES,
    ROW_RECORDS_MAX,
    Known,
    arrival_row,
    pack_arrivals,
    read_arrivals,
)
from backend_store.node.limits import RECOVERY_ROWS_PER_READ
from backend_store.node.publishing.id_runs import IdRuns, id_range, run_key
from backend_store.storage.engine import Batch, Engine, Row, StorageCorrupt, Table
from backend_store.storage.seal import seal, unseal

__all__ = ["IdStore", "id_range"]

WORK_PER_ID = 4
"""Extra work allowed per new id, beside `step_ids`: an id is partitioned, sorted, and merged twice. Less would pile
up."""

_ARRIVALS = struct.Struct(">IBQ")


class _ArrivalRow(NamedTuple):
    """A row of ids in order of arrival."""

    number: int
    ids: int


class IdStore:
    """One partition's ids, owned by the partition. Call all methods on the loop's thread. Rows are read on first
    use."""

    def __init__(self, engine: Engine, replica: int, bounds: Bounds | None = None):
        self._engine = engine
        self._replica = replica
        self._bounds = bounds or Bounds()
        self._is_loaded = False
        self._broken: StorageCorrupt | None = None
        self._horizon_ms = 0
        """Ids of this time and earlier are out of the window."""
        self._recent = Recent()
        self._frozen: Recent | None = None
        """A full dict that is being written as a run; it answers look-ups until the run does."""
        self._is_thawing = False
        """The commit in flight completes that run."""
        self._runs = IdRuns(engine, replica, self._bounds)
        self._added: list[bytes] = []
        """Groups of ids not staged yet."""
        self._added_ids = 0
        self._open: list[bytes] = []
        """Groups of the arrival row that still takes more: the last of `_arrivals`."""
        self._arrivals: deque[_ArrivalRow] = deque()
        """Rows of the staged part of `_recent`."""
        self._frozen_arrivals: deque[_ArrivalRow] = deque()
        self._arrival_number = 0

    # -------------------------------------------------------------------------------------------------- decisions

    def lookup(self, ids: Sequence[bytes | None], *, now_ms: int, window_ms: int) -> dict[int, int]:
        """Position in `ids` → offset of the first message with that hash, committed or decided since.

        Repeats within `ids` are the caller's to find. If the window was made longer, an id that had left it may or may
        not be known again. Raises `StorageCorrupt` if a row that may hold one of the ids does not verify: to take the
        message as new would be a guess.
        """
        self._load()
        self._horizon_ms = horizon_ms = now_ms - window_ms
        suspects = self._suspects(ids)
        known: dict[int, int] = {}
        if suspects:
            for position, hash_ in enumerate(ids):
                if hash_ is not None and hash_ in suspects:
                    found = self._find(hash_, horizon_ms)
                    if found is not None:
                        known[position] = found.offset
        return known

    def add(self, ids: Sequence[bytes | None], base: int | Sequence[int], *, now_ms: int) -> None:
        """Adds ids of messages that the next commit stores. `base`: the first message's offset, or one offset per
        id."""
        self._load()
        places = range(base, base + len(ids)) if isinstance(base, int) else base
        assert len(places) == len(ids), f"{len(ids)} ids, {len(places)} offsets"
        hashes = cast(Sequence[bytes], ids)
        try:
            packed, offsets = b"".join(hashes), array("Q", places)
        except TypeError:
            # There is a None among them; a check beforehand would cost more than the join itself.
            offsets = array("Q", [place for hash_, place in zip(ids, places, strict=True) if hash_ is not None])
            hashes = [hash_ for hash_ in ids if hash_ is not None]
            packed = b"".join(hashes)
        assert len(packed) == HASH_BYTES * len(hashes), f"an id has {HASH_BYTES} bytes"
        if hashes:
            recent = self._recent
            recent.add(hashes, offsets, now_ms)
            if recent.is_filtered:
                self._runs.note(hashes, stored=len(self), time_ms=recent.newest_ms)
            self._added.append(pack_arrivals(recent.newest_ms, packed, offsets))
            self._added_ids += len(hashes)

    def has_room(self, count: int) -> bool:
        """Whether so many new ids may be added. Ids that were out of the window at the last look-up do not count."""
        self._load()
        if len(self) + count <= self._bounds.ids_max:
            return True
        horizon_ms = self._horizon_ms
        frozen = self._frozen.live(horizon_ms) if self._frozen is not None else 0
        return self._recent.live(horizon_ms) + frozen + self._runs.live(horizon_ms) + count <= self._bounds.ids_max

    def __len__(self) -> int:
        """Ids stored, including those out of the window and not yet deleted."""
        return self._runs.count + len(self._recent) + (len(self._frozen) if self._frozen is not None else 0)

    @property
    def is_empty(self) -> bool:
        """No id is stored, neither in the window nor waiting for deletion. Raises `StorageCorrupt`."""
        self._load()
        return len(self) == 0

    def move_on(self, now_ms: int, window_ms: int) -> None:
        """Advances time without a look-up: ids that leave the window are deleted with the next commits."""
        self._horizon_ms = now_ms - window_ms

    def next_expiry_ms(self, window_ms: int) -> int | None:
        """When the next rows leave the window; None if there are no rows."""
        self._load()
        newest_ms = self._runs.next_expiry_ms()
        if self._arrivals:
            arrived_ms = self._recent.time_of(self._arrivals[0].ids - 1)
            newest_ms = arrived_ms if newest_ms is None else min(newest_ms, arrived_ms)
        return None if newest_ms is None else newest_ms + window_ms

    @property
    def is_busy(self) -> bool:
        """Whether ids remain to be written, merged or deleted, also in commits that bring no new ones."""
        return self._runs.is_busy

    def _suspects(self, ids: Sequence[bytes | None]) -> set[bytes | None]:
        suspects = self._runs.suspects(ids)
        for recent in (self._recent, self._frozen):
            if recent is not None and not recent.is_filtered:
                suspects.update(recent.among(ids))
        return suspects

    def _find(self, hash_: bytes, horizon_ms: int) -> Known | None:
        """The newest message with this hash, if it is in the window."""
        for recent in (self._recent, self._frozen):
            known = recent.find(hash_) if recent is not None else None
            if known is not None and known.time_ms > horizon_ms:
                return known
        return self._runs.find(hash_, horizon_ms)

    # ------------------------------------------------------------------------------------------------ group commit

    def stage(self, batch: Batch) -> None:
        """Stages the ids added since the last commit, and a bounded amount of sorting, merging and deleting.

        Unreadable rows must not hold up the other members' commit: they are logged, and look-ups raise.
        """
        try:
            self._load()
        except StorageCorrupt:
            return
        bounds = self._bounds
        allowance = WORK_PER_ID * self._added_ids
        self._stage_arrivals(batch)
        self._expire(batch)
        budget = bounds.step_ids + allowance
        if self._frozen is None and len(self._recent) >= bounds.recent_ids_max:
            self._freeze()
        rows_max = bounds.sweep_rows + allowance // ROW_RECORDS_MAX
        if self._runs.stage(batch, budget=budget, rows_max=rows_max, horizon_ms=self._horizon_ms):
            self._is_thawing = True
            for row in self._frozen_arrivals:
                batch.delete(Table.IDS, arrival_key(self._replica, row.number))

    def committed(self) -> None:
        """What was staged is durable."""
        self._runs.committed()
        if self._is_thawing:
            self._is_thawing = False
            self._frozen = None
            self._frozen_arrivals.clear()

    def _stage_arrivals(self, batch: Batch) -> None:
        if not self._added:
            return
        count = self._added_ids
        if self._open:
            count += self._arrivals.pop().ids
        self._open += self._added
        self._arrivals.append(_ArrivalRow(self._arrival_number, count))
        key = arrival_key(self._replica, self._arrival_number)
        batch.put(Table.IDS, key, seal(key, arrival_row(self._open)))
        self._added, self._added_ids = [], 0
        if count >= self._bounds.arrival_row_ids_min:
            self._close_row()

    def _close_row(self) -> None:
        if self._open:
            self._open = []
            self._arrival_number += 1

    def _expire(self, batch: Batch) -> None:
        """Drops arrival rows that are wholly out of the window; runs do so themselves."""
        arrivals = self._arrivals
        while arrivals and self._recent.time_of(arrivals[0].ids - 1) <= self._horizon_ms:
            row = arrivals.popleft()
            self._recent.forget(row.ids)
            batch.delete(Table.IDS, arrival_key(self._replica, row.number))
            if not arrivals:
                self._close_row()

    def _freeze(self) -> None:
        """Starts to write the dict as a run."""
        stored = len(self)
        # Later ids are put into the filter on arrival, so that a look-up need not ask the dict.
        self._frozen, self._recent = self._recent, Recent(is_filtered=True)
        self._close_row()
        self._frozen_arrivals, self._arrivals = self._arrivals, deque()
        self._runs.freeze(self._frozen, stored=stored)

    # ----------------------------------------------------------------------------------------------------- at start

    def _load(self) -> None:
        """Reads what the last process stored. Raises `StorageCorrupt` on every call once a row did not verify."""
        if self._is_loaded:
            return
        if self._broken is not None:
            raise self._broken
        try:
            if self._engine.first_at_or_above(Table.IDS, *id_range(self._replica)) is not None:
                self._runs.load()
                self._load_arrivals()
        except StorageCorrupt as error:
            self._broken = error
            raise
        self._is_loaded = True

    def _load_arrivals(self) -> None:
        start, end = arrival_key(self._replica, 0), run_key(self._replica, 0)
        while rows := self._engine.scan(Table.IDS, start, end, RECOVERY_ROWS_PER_READ):
            for row in rows:
                self._load_arrival_row(row)
            start = rows[-1][0] + b"\0"

    def _load_arrival_row(self, row: Row) -> None:
        count = len(self._recent)
        for group in read_arrivals(unseal(*row)):
            self._recent.add(group.hashes, group.offsets, group.time_ms)
        number = _ARRIVALS.unpack(row[0])[2]
        self._arrivals.append(_ArrivalRow(number, len(self._recent) - count))
        self._arrival_number = number + 1


def arrival_key(replica: int, number: int) -> bytes:
    return _ARRIVALS.pack(replica, 1, number)
