"""Places, the message ids derived from partition and offset.

A message without an id of its own is known by its place, `"{partition}-{offset:012x}"`. A partition that reuses the
number of an earlier one continues its offsets, so no place is used twice.
"""

from __future__ import annotations

from backend_store.model import PARTITIONS_MAX, Offset


def message_id(partition: int, offset: int) -> str:
    """Returns the id of a message whose producer gave it none: its place."""
    return f"{partition}-{offset:012x}"


def parse_message_id(text: str) -> tuple[int, Offset] | None:
    """Returns (partition, offset) of an id that is a place in the exact spelling of `message_id`, else None."""
    partition, dash, offset = text.partition("-")
    if not dash or not (partition.isascii() and partition.isdigit()) or not (12 <= len(offset) <= 16):
        return None
    try:
        place = int(partition), Offset(int(offset, 16))
    except ValueError:
        return None
    return place if place[0] < PARTITIONS_MAX and message_id(*place) == text else None
