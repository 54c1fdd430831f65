"""A miniature sorted partition: a log, the stored rows, a sorter between them, and a crash when the test says so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from backend_store.core.reorder.by_clock import ByClock
from backend_store.core.reorder.by_producer import ByProducer
from backend_store.core.reorder.records import (
    OrderRecord,
    ProducerAdvanced,
    ProducerForgotten,
    WatermarkRaised,
    decode_producer,
    decode_watermark,
    encode_producer,
    encode_watermark,
)
from backend_store.core.reorder.sorter import Held, Sorted, Sorter
from backend_store.model import Original, Overloaded, QueueConfig, Stamp

START_MS = 1_700_000_000_000

Crash = Literal["before the commit", "after the commit"] | None


def make_sorter(config: QueueConfig) -> Sorter:
    return ByClock(config, "orders") if config.sequencing == "clock" else ByProducer(config, "orders")


def config(sequencing: Literal["producer", "clock"], **settings: Any) -> QueueConfig:
    return QueueConfig(sequencing=sequencing, **settings)


class Stored(NamedTuple):
    """A message in the log; its offset is its index there."""

    stamp: Stamp | None
    arrived_ms: int
    is_late: bool


class Accepted(NamedTuple):
    offset: int
    is_late: bool


Answer = Accepted | Original | Overloaded | None
"""None: no response, as the process ended before."""


class SortedLog:
    def __init__(self, config: QueueConfig):
        self.config = config
        self.sorter = make_sorter(config)
        self.log: list[Stored] = []
        self.released: list[tuple[int, int]] = []
        """(offset, time), in order of release."""
        self.rows: dict[str, bytes] = {}
        self.watermark: bytes | None = None
        self.held_from = 0

    def cycle(self, *calls: Sequence[Stamp | None], now_ms: int, crash: Crash = None) -> list[Answer]:
        """One commit with several publish calls; returns the responses to all of them in one list."""
        log_end, released_end = len(self.log), len(self.released)
        decisions: list[Sorted] = []
        for stamps in calls:
            decisions.append(self.sorter.decide(stamps, now_ms, decisions[-1] if decisions else None))
        answers: list[Answer] = []
        for stamps, decision in zip(calls, decisions, strict=True):
            answers += self._store(stamps, decision, now_ms)
        self.released += [(offset, now_ms) for offset in self.sorter.release(now_ms)]
        if crash == "before the commit":
            del self.log[log_end:], self.released[released_end:]
            self.restart(now_ms)
            return [None] * len(answers)
        self._commit(self.sorter.records())
        if crash == "after the commit":
            self.restart(now_ms)
            return [None] * len(answers)
        return answers

    def _store(self, stamps: Sequence[Stamp | None], decision: Sorted, now_ms: int) -> list[Answer]:
        answers: list[Answer] = []
        offsets = []
        left_out = {*decision.repeats, *decision.refused}
        time_ms = max(now_ms, self.log[-1].arrived_ms) if self.log else now_ms
        for index, stamp in enumerate(stamps):
            offsets.append(len(self.log))
            if index in left_out:
                answers.append(decision.refused.get(index))
                continue
            is_late = index in decision.late
            answers.append(Accepted(len(self.log), is_late))
            self.log.append(Stored(stamp, time_ms, is_late))
        for index, original in self.sorter.add(decision, offsets).items():
            answers[index] = original
        return answers

    def _commit(self, records: Sequence[OrderRecord]) -> None:
        for record in records:
            match record:
                case WatermarkRaised():
                    self.watermark = encode_watermark(record)
                case ProducerAdvanced(producer):
                    self.rows[producer] = encode_producer(record)
                case ProducerForgotten(producer):
                    del self.rows[producer]
        self.held_from = self.sorter.held_from(len(self.log))

    def stored(self) -> list[OrderRecord]:
        records: list[OrderRecord] = [decode_producer(name, row) for name, row in self.rows.items()]
        return records + [decode_watermark(row) for row in [self.watermark] if row is not None]

    def waiting(self) -> list[Held]:
        """The messages that a restart finds: in the log, not late, never released."""
        gone = {offset for offset, _ in self.released}
        found = [
            Held(offset, entry.stamp, entry.arrived_ms)
            for offset, entry in enumerate(self.log)
            if offset not in gone and not entry.is_late
        ]
        assert all(held.offset >= self.held_from for held in found), f"{found[0]} is below {self.held_from}"
        return found

    def restored(self, now_ms: int) -> Sorter:
        """A sorter as restored by a restart."""
        sorter = make_sorter(self.config)
        sorter.restore(self.stored(), self.waiting(), now_ms)
        return sorter

    def restart(self, now_ms: int) -> None:
        self.sorter = self.restored(now_ms)

    def order(self) -> list[Stamp | None]:
        """The stamps of released messages, in order."""
        return [self.log[offset].stamp for offset, _ in self.released]
