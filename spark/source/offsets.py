"""Positions in a stream, as Spark's checkpoints keep them, and the splits of a batch between two positions.

An offset is `{"queue", "uid", "partitions": {"0": n}}`. Only plain values come in and go out: no function here calls a
gateway.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from spark.source.errors import DataLost, StreamChanged, WrongOption
from spark.source.limits import TASKS_MAX

Places = dict[int, int]
"""Partition → offset."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Where a reader begins or ends: at one of the ends, or at an offset in each partition."""

    at: Literal["earliest", "latest", "places"]
    places: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Part:
    """One partition as the gateway reports it: everything below `first` is trimmed."""

    partition: int
    first: int
    next: int


@dataclass(frozen=True, slots=True)
class Layout:
    """A queue's present partitions."""

    queue: str
    uid: str
    kind: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Split:
    """What one task reads: offsets from `start` up to but not including `end`."""

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
        places = {int(partition): int(offset) for partition, offset in given.items()}
        if not places or min(places.values()) < 0 or min(places) < 0:
            raise ValueError
    except (ValueError, TypeError, AttributeError):
        detail = f'is {(text or "")[:100]!r}; it is earliest, latest, or an offset for each partition: {{"0": 17}}'
        raise WrongOption(name, detail) from None
    return Bound("places", places)


def layout_of(answer: Mapping[str, Any]) -> Layout:
    """The answer to `GET …/offsets`."""
    parts = tuple(Part(row["partition"], row["first"], row["next"]) for row in answer["partitions"])
    return Layout(answer["queue"], answer["uid"], answer["kind"], parts)


def begin(bound: Bound, layout: Layout, name: str) -> Places:
    """The position of a bound in every present partition."""
    unknown = set(bound.places) - {part.partition for part in layout.parts}
    if unknown:
        there = ", ".join(str(part.partition) for part in layout.parts)
        raise WrongOption(name, f"{layout.queue!r} has no partition {min(unknown)}, only {there}")
    edge = {part.partition: part.next if bound.at == "latest" else part.first for part in layout.parts}
    if bound.at == "places" and name == "endingOffsets":
        edge = {part.partition: part.next for part in layout.parts}
    return {number: min(bound.places.get(number, place), _end(layout, number)) for number, place in edge.items()}


def _end(layout: Layout, number: int) -> int:
    return next(part.next for part in layout.parts if part.partition == number)


def as_offset(layout: Layout, places: Mapping[int, int]) -> dict[str, Any]:
    rows = {str(number): place for number, place in sorted(places.items())}
    return {"queue": layout.queue, "uid": layout.uid, "partitions": rows}


def places_of(offset: Mapping[str, Any], layout: Layout) -> Places:
    """The offsets of a checkpoint. Raises `StreamChanged` for an offset of another stream."""
    if offset.get("uid") != layout.uid or offset.get("queue") != layout.queue:
        raise StreamChanged(
            f"the checkpoint is of stream {offset.get('queue')!r} with uid {offset.get('uid')}, and {layout.queue!r} "
            f"has uid {layout.uid} now: it was deleted and made anew, so its offsets mean other messages. Start with "
            'a new checkpointLocation; startingOffsets "earliest" reads all of the new stream'
        )
    return {int(number): int(place) for number, place in offset["partitions"].items()}


def advance(start: Mapping[int, int], target: Mapping[int, int], max_offsets: int | None) -> Places:
    """How far a batch goes: to the target, or by `max_offsets` over all partitions, each by its share of what is left.

    A partition that came since is read from where `joined` puts the reader.
    """
    left = {number: max(0, end - start.get(number, 0)) for number, end in target.items()}
    total = sum(left.values())
    if max_offsets is None or total <= max_offsets:
        return {number: max(end, start.get(number, 0)) for number, end in target.items()}
    # Each with something left goes on by at least one, so that none starves beside a large one.
    return {
        number: start.get(number, 0) + min(ahead, max(1, ahead * max_offsets // total))
        for number, ahead in left.items()
    }


def joined(start: Mapping[int, int], layout: Layout) -> Places:
    """Where a reader stands in each partition; one that came since is read from its beginning."""
    known = dict(start)
    for part in layout.parts:
        known.setdefault(part.partition, part.first)
    return known


def check_kept(start: Mapping[int, int], end: Mapping[int, int], layout: Layout) -> None:
    """Raises `DataLost` if messages between two positions are gone."""
    first = {part.partition: part.first for part in layout.parts}
    for number, place in end.items():
        began = start.get(number, 0)
        if place > began and number in start and first.get(number, place) > began:
            gone = min(first.get(number, place), place)
            raise DataLost(
                f"{layout.queue!r}, partition {number}: offsets {began} to {gone - 1} are gone (retention or a purge) "
                "before they were read. Keep the stream longer (`retention_ms`, `retention_bytes`), or set "
                'option "failOnDataLoss" to false to go on behind them'
            )


def check_reached(places: Mapping[int, int], layout: Layout) -> None:
    """Raises `DataLost` if the stream ends before a reader's position."""
    for part in layout.parts:
        place = places.get(part.partition, 0)
        if place > part.next:
            raise DataLost(
                f"{layout.queue!r}, partition {part.partition}: the stream ends at offset {part.next}, and the query "
                f"stands at {place}: the stream was restored from a backup, or the gateway is behind. Offsets from "
                f"{part.next} on may be other messages now. Start with a new checkpointLocation, or set option "
                '"failOnDataLoss" to false to go on from where the stream ends'
            )


def reached(places: Mapping[int, int], layout: Layout) -> Places:
    """Positions no further than the stream's end."""
    end = {part.partition: part.next for part in layout.parts}
    return {number: min(place, end.get(number, place)) for number, place in places.items()}


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
