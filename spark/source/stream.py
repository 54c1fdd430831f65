"""Reads streams, and companions of queues, by offset: in one batch, or in successive batches from a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import quote

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from spark.source.errors import DataLost, PushqSourceError, StreamChanged, WrongOption
from spark.source.exact import messages_of
from spark.source.gateway import Gateway
from spark.source.limits import RANGE_MESSAGES
from spark.source.offsets import (
    Layout,
    Positions,
    Split,
    advance,
    as_offset,
    begin,
    check_kept,
    check_reached,
    joined,
    positions_of,
    reached,
    splits,
)
from spark.source.options import Options
from spark.source.rows import row_of
from spark.source.sealing import Sealer

KINDS: Final = ("stream", "companion")


class Range(InputPartition):
    """What one task reads."""

    def __init__(self, split: Split, uid: str) -> None:
        super().__init__(split)
        self.split = split
        self.uid = uid


def layout_now(options: Options) -> Layout:
    """The current layout. Raises `WrongOption` for a queue that cannot be read by offset."""
    with Gateway(options.url, options.token, options.retry_s) as gateway:
        found = gateway.layout(options.queue)
    if found.kind not in KINDS:
        detail = f"{options.queue!r} is a work queue: it has no offsets; read it with readStream, or read a stream"
        raise WrongOption("queue", detail)
    return found


def read_split(options: Options, split: Split, uid: str) -> Iterator[tuple[Any, ...]]:
    """Yields the rows of a split, page by page. Raises `StreamChanged` and `DataLost`."""
    sealer = Sealer(options.seal_key) if options.seal and options.seal_key is not None else None
    path = f"/v1/queues/{quote(options.queue, safe='')}/partitions/{split.partition}/messages"
    at = split.start
    with Gateway(options.url, options.token, options.retry_s) as gateway:
        while at < split.end:
            query = {"from": at, "until": split.end, "limit": RANGE_MESSAGES, "uid": uid}
            try:
                page, messages = messages_of(gateway.ask("GET", path, query))
            except PushqSourceError as error:
                if getattr(error, "code", "") == "conflict":
                    raise StreamChanged(f"{error}: the job started on an earlier stream of this name")
                raise
            if options.fail_on_data_loss and page["first"] > at:
                raise DataLost(
                    f"{options.queue!r}, partition {split.partition}: offsets {at} to {page['first'] - 1} were removed "
                    'while being read; keep the stream longer, or set option "failOnDataLoss" to false'
                )
            for message in messages:
                yield row_of(options.queue, uid, message, sealer)
            if page["next"] <= at:
                if not options.fail_on_data_loss:
                    break
                raise DataLost(
                    f"{options.queue!r}, partition {split.partition}: the stream ends at offset {at}, but ended at "
                    f"{split.end} when the job started: it was restored from a backup, or the gateway is behind"
                )
            at = page["next"]


class RangeReader(DataSourceReader):
    """Everything between `startingOffsets` and `endingOffsets`, resolved when the query is planned."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        options = self._options
        layout = layout_now(options)
        start = begin(options.starting, layout, "startingOffsets")
        end = begin(options.ending, layout, "endingOffsets")
        if options.starting.at == "positions":
            _check(options, start, end, layout)
        return [Range(split, layout.uid) for split in splits(start, end, options.split)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        if not isinstance(partition, Range):  # Spark creates a task even if there is nothing to read
            return iter(())
        return read_split(self._options, partition.split, partition.uid)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Each batch starts where the previous one ended. Only Spark's checkpoint stores the offsets."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._until: Positions | None = None
        """Where a query with `availableNow` ends."""

    def initialOffset(self) -> dict[str, Any]:
        layout = layout_now(self._options)
        return as_offset(layout, begin(self._options.starting, layout, "startingOffsets"))

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self._options.max_offsets
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:
        self._until = {part.partition: part.next for part in layout_now(self._options).parts}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        layout = layout_now(self._options)
        at = positions_of(start, layout)
        if self._options.fail_on_data_loss:
            check_reached(at, layout)
        positions = joined(reached(at, layout), layout)
        target = self._until or {part.partition: part.next for part in layout.parts}
        end = advance(positions, target, self._options.max_offsets)
        return as_offset(layout, {**positions, **end})

    def reportLatestOffset(self) -> dict[str, Any] | None:
        layout = layout_now(self._options)
        return as_offset(layout, {part.partition: part.next for part in layout.parts})

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        layout = layout_now(self._options)
        began, until = positions_of(start, layout), positions_of(end, layout)
        _check(self._options, began, until, layout)
        first = {part.partition: part.first for part in layout.parts}
        from_ = {number: began.get(number, first.get(number, 0)) for number in until}
        here = {number: offset for number, offset in until.items() if number in first}
        return [Range(split, layout.uid) for split in splits(from_, here, self._options.split)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        assert isinstance(partition, Range)
        return read_split(self._options, partition.split, partition.uid)

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: the checkpoint has the position; a stream does not track its readers."""

    def stop(self) -> None:
        """Does nothing: there are no leases to release."""


def _check(options: Options, start: Positions, end: Positions, layout: Layout) -> None:
    if options.fail_on_data_loss:
        check_reached(end, layout)
        check_kept(start, end, layout)
