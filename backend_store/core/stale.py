"""Which receipts of a group with offsets say nothing any more, because their messages were given back.

A consumer that gives a message back goes back to it: it and all behind it come again. An ack by an earlier receipt of
one of them would settle what was given back. What lies before it is not touched by that.
"""

from __future__ import annotations

from typing import NamedTuple


class GivenBack(NamedTuple):
    """From `offset` on, receipts of leases up to `last_lease` are stale."""

    offset: int
    last_lease: int


GivenBacks = tuple[GivenBack, ...]
"""Rising in both, so that the first one that speaks of a lease has its lowest offset."""


def given_back(known: GivenBacks, one: GivenBack, *, position: int) -> GivenBacks:
    """With one more, which has the latest lease. Of those up to the group's position the last says all."""
    before = [each for each in known if each.offset < one.offset]
    ahead = [each for each in before if each.offset > position]
    behind = before[: len(before) - len(ahead)][-1:]
    return (*behind, *ahead, one)


def stale_from(known: GivenBacks, lease: int) -> int | None:
    """The first message of which a lease's receipts are stale."""
    return next((each.offset for each in known if lease <= each.last_lease), None)
