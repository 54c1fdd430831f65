"""Places in a queue of several partitions, as ids of messages.

A message without an id of its own is known by its place, `"{partition}-{offset:012x}"`; a number is never given to a
second partition before its offsets go on, so no place is given out twice.
"""

from __future__ import annotations

from backend_store.model import PARTITIONS_MAX, Offset


def message_id(partition: int, offset: int) -> str:
    """The id of a message whose producer gave it none: its place."""
    return f"{partition}-{offset:012x}"


def parse_message_id(text: str) -> tuple[int, Offset] | None:
    """(partition, offset) of an id that is a place; None for any other id. Only the spelling that was given out."""
    partition, dash, offset = text.partition("-")
    if not dash or not (partition.isascii() and partition.isdigit()) or not (12 <= len(offset) <= 16):
        return None
    try:
        place = int(partition), Offset(int(offset, 16))
    except ValueError:
        return None
    return place if place[0] < PARTITIONS_MAX and message_id(*place) == text else None
