"""What a replica asks its shell to do, in this order.

All that changes the stored partition since the last commit goes into the next one, in order, as one transaction with
the log's `stored()` row; `Replica.staged` and `Replica.committed` frame it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from backend_store.core.replication.entries import Entry
from backend_store.core.replication.messages import AskSnapshot, Fetch, Message, Row, SnapshotBase
from backend_store.core.replication.record import Change, NodeId
from backend_store.model import Epoch, Offset


class Append(NamedTuple):
    """Store these entries at the end of the log."""

    entries: tuple[Entry, ...]


class Truncate(NamedTuple):
    """Delete the entries from `end` on; with `keeps`, what was confirmed in them goes to the quarantine in the same
    transaction: see `stranded`."""

    end: Offset
    keeps: bool


class Trim(NamedTuple):
    """The log below may be deleted: only state is needed there."""

    start: Offset


class Apply(NamedTuple):
    """All below is final: apply the entries up to it, tell `Replica.applied_to`. Never applied beyond."""

    end: Offset


class StageRows(NamedTuple):
    """Store a snapshot's rows under a replica id that is not in use yet; `is_first` empties it before."""

    rows: tuple[Row, ...]
    is_first: bool


class Switch(NamedTuple):
    """Put the staged rows in the place of the partition's state, as of `base.end`.

    Of the log stays what lies between `base.end` and `end`. With `keeps`, what lay from `end` on moves to the
    quarantine, but for what the log of `base` has. `has_parted`: it is known to have nothing of that.
    """

    base: SnapshotBase
    end: Offset
    keeps: bool
    has_parted: bool = False


class Send(NamedTuple):
    to: NodeId
    message: Message


class Serve(NamedTuple):
    """Answer a fetch with `Replica.fetched(fetch, entries)`: entries from `fetch.end` on, within `FETCH_BYTES_MAX`."""

    fetch: Fetch


class ServeSnapshot(NamedTuple):
    """Answer with `Replica.page(ask, rows, is_last)`: rows after `ask.after`, within `SNAPSHOT_ROWS_MAX`."""

    ask: AskSnapshot


class Submit(NamedTuple):
    """Ask the coordinator for a change; tell `on_record` when it is made, `on_refused` when it is refused."""

    change: Change


class Reread(NamedTuple):
    """Somebody knows a newer record: read it."""


class Lead(NamedTuple):
    """This replica leads now: build the overlay of the entries from `applied` to the end of the log."""

    epoch: Epoch


class Follow(NamedTuple):
    """This replica does not lead any more: drop the overlay."""


class Confirm(NamedTuple):
    """Answer these callers: what they wait for is as safe as the partition's mode promises."""

    tickets: tuple[Any, ...]


class Abandon(NamedTuple):
    """Tell these callers that the outcome is unknown."""

    tickets: tuple[Any, ...]


Effect = (
    Append
    | Truncate
    | Trim
    | Apply
    | StageRows
    | Switch
    | Send
    | Serve
    | ServeSnapshot
    | Submit
    | Reread
    | Lead
    | Follow
    | Confirm
    | Abandon
)
