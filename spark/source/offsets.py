"""Positions in a stream, as stored in Spark's checkpoints, and the splits of a batch between two positions.

An offset is `{"queue", "uid", "partitions": {"0": n}}`. The functions here take and return plain values, and never call
a gateway.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from spark.source.errors import DataLost, StreamChanged, WrongOption
from spark.source.limits import TASKS_MAX

Positions = dict[int, int]
"""Partition → offset."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Where a reader starts or ends: at an end of the stream, or at an offset in each partition."""

    at: Literal["earliest", "latest", "positions"]
    positions: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Part:
    """One partition as the gateway reports it: everything below `first` has been trimmed."""

    partition: int
    first: int
    next: int


@dataclass(frozen=True, slots=True)
class Layout:
    """A queue's current partitions."""

    queue: str
    uid: str
    kind: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Split:
    """What one task reads: the offsets from `start` up to, but not including, `end`."""

    partition: int
    start: int
    end: int


def parsed_bound(name: str, text: str | None) -> Bound:
    """`earliest`, `latest` or `{"0": 17}`. Raises `WrongOption`."""
    if text == "earliest":
        return Bound("earliest", {})
    if text == "latest":
        return Bound("latest", {})
    try:
        given = json.loads(text or "")
        positions = {int(partition): int(offset) for partition, offset in given.items()}
        if not positions or min(positions.values()) < 0 or min(positions) < 0:
            raise ValueError
    except (ValueError, TypeError, AttributeError):
        detail = f'is {(text or "")[:100]!r}; use earliest, latest, or an offset for each partition: {{"0": 17}}'
        raise WrongOption(name, detail) from None
    return Bound("positions", positions)


def layout_of(answer: Mapping[str, Any]) -> Layout:
    """Parses the response to `GET …/offsets`."""
    parts = tuple(Part(row["partition"], row["first"], row["next"]) for row in answer["partitions"])
    return Layout(answer["queue"], answer["uid"], answer["kind"], parts)


def begin(bound: Bound, layout: Layout, name: str) -> Positions:
    """The offset of a bound in each current partition."""
    unknown = set(bound.positions) - {part.partition for part in layout.parts}
    if unknown:
        there = ", ".join(str(part.partition) for part in layout.parts)
        raise WrongOption(name, f"{layout.queue!r} has no partition {min(unknown)}, only {there}")
    edge = {part.partition: part.next if bound.at == "latest" else part.first for part in layout.parts}
    if bound.at == "positions" and name == "endingOffsets":
        edge = {part.partition: part.next for part in layout.parts}
    return {number: min(bound.positions.get(number, offset), _end(layout, number)) for number, offset in edge.items()}


def _end(layout: Layout, number: int) -> int:
    return next(part.next for part in layout.parts if part.partition == number)


def as_offset(layout: Layout, positions: Mapping[int, int]) -> dict[str, Any]:
    rows = {str(number): offset for number, offset in sorted(positions.items())}
    return {"queue": layout.queue, "uid": layout.uid, "partitions": rows}


def positions_of(offset: Mapping[str, Any], layout: Layout) -> Positions:
    """The offsets of a checkpoint. Raises `StreamChanged` if it belongs to another stream."""
    if offset.get("uid") != layout.uid or offset.get("queue") != layout.queue:
        raise StreamChanged(
            f"the checkpoint belongs to stream {offset.get('queue')!r} with uid {offset.get('uid')}, but "
            f"{layout.queue!r} now has uid {layout.uid}: it was deleted and created again, so its offsets refer to "
            'other messages. Use a new checkpointLocation; startingOffsets "earliest" reads all of the new stream'
        )
    return {int(number): int(at) for number, at in offset["partitions"].items()}


def advance(start: Mapping[int, int], target: Mapping[int, int], max_offsets: int | None) -> Positions:
    """How far a batch goes: to the target, or by `max_offsets` in total, each partition in proportion to what is left.

    A partition added since then is read from where `joined` puts the reader.
    """
    left = {number: max(0, end - start.get(number, 0)) for number, end in target.items()}
    total = sum(left.values())
    if max_offsets is None or total <= max_offsets:
        return {number: max(end, start.get(number, 0)) for number, end in target.items()}
    # Each partition with something left advances by at least one offset, so that a large one cannot starve it.
    return {
        number: start.get(number, 0) + min(ahead, max(1, ahead * max_offsets // total))
        for number, ahead in left.items()
    }


def joined(start: Mapping[int, int], layout: Layout) -> Positions:
    """The reader's position in each partition; one added since then is read from its beginning."""
    known = dict(start)
    for part in layout.parts:
        known.setdefault(part.partition, part.first)
    return known


def check_kept(start: Mapping[int, int], end: Mapping[int, int], layout: Layout) -> None:
    """Raises `DataLost` if messages between two positions have been removed."""
    first = {part.partition: part.first for part in layout.parts}
    for number, offset in end.items():
        began = start.get(number, 0)
        if offset > began and number in start and first.get(number, offset) > began:
            gone = min(first.get(number, offset), offset)
            raise DataLost(
                f"{layout.queue!r}, partition {number}: offsets {began} to {gone - 1} are gone (retention or a purge) "
                "before they were read. Keep the stream longer (`retention_ms`, `retention_bytes`), or set "
                'option "failOnDataLoss" to false to continue after them'
            )


def check_reached(positions: Mapping[int, int], layout: Layout) -> None:
    """Raises `DataLost` if the stream ends before a reader's position."""
    for part in layout.parts:
        offset = positions.get(part.partition, 0)
        if offset > part.next:
            raise DataLost(
                f"{layout.queue!r}, partition {part.partition}: the stream ends at offset {part.next}, but the query "
                f"is at {offset}: the stream was restored from a backup, or the gateway is behind. Offsets from "
                f"{part.next} on may be other messages now. Use a new checkpointLocation, or set option "
                '"failOnDataLoss" to false to continue from the end of the stream'
            )


def reached(positions: Mapping[int, int], layout: Layout) -> Positions:
    """Positions, but no further than the end of the stream."""
    end = {part.partition: part.next for part in layout.parts}
    return {number: min(offset, end.get(number, offset)) for number, offset in positions.items()}


def splits(start: Mapping[int, int], end: Mapping[int, int], size: int) -> list[Split]:
    """What the tasks of a batch read, in order of partition and offset."""
    total = sum(max(0, stop - start.get(number, 0)) for number, stop in end.items())
    size = max(size, -(-total // TASKS_MAX))
    found: list[Split] = []
    for number, stop in sorted(end.items()):
        at = start.get(number, 0)
        while at < stop:
            found.append(Split(number, at, min(stop, at + size)))
            at += size
    return found
