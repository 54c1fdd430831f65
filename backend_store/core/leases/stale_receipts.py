"""Which receipts of a group with offsets are stale because their messages were given back.

Giving a message back rewinds the group to it: it and everything behind it is delivered again. An ack by an earlier
receipt of one of these would settle what was given back. Earlier messages are not affected.
"""

from __future__ import annotations

from typing import NamedTuple


class GivenBack(NamedTuple):
    """Receipts of leases up to `last_lease` are stale from `offset` on."""

    offset: int
    last_lease: int


GivenBacks = tuple[GivenBack, ...]
"""Ascending in both fields, so that the first entry that applies to a lease has its lowest offset."""


def given_back(known: GivenBacks, one: GivenBack, *, position: int) -> GivenBacks:
    """Returns `known` with one entry more, which has the latest lease. Of the entries up to the group's position only
    the last is kept, since it covers the others.
    """
    before = [each for each in known if each.offset < one.offset]
    ahead = [each for each in before if each.offset > position]
    behind = before[: len(before) - len(ahead)][-1:]
    return (*behind, *ahead, one)


def stale_from(known: GivenBacks, lease: int) -> int | None:
    """Returns the offset from which on a lease's receipts are stale; None: nowhere."""
    return next((each.offset for each in known if lease <= each.last_lease), None)
