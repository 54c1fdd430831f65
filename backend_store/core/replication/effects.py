"""Effects: what a replica asks its shell to do, in the order given.

Effects that change the stored partition go into the next commit, in order, as one transaction with the log's `stored()`
row, between `Replica.staged` and `Replica.committed`.
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
    """Delete the entries from `end` on. With `keeps`, messages confirmed in them move to the quarantine in the same
    transaction: see `stranded`."""

    end: Offset
    keeps: bool


class Trim(NamedTuple):
    """The log below `start` may be deleted: only the state is needed there."""

    start: Offset


class Apply(NamedTuple):
    """Everything below `end` is final: apply the entries up to it, none beyond, and call `Replica.applied_to`."""

    end: Offset


class StageRows(NamedTuple):
    """Store rows of a snapshot under a replica id that is not in use yet. `is_first`: delete what is there before."""

    rows: tuple[Row, ...]
    is_first: bool


class Switch(NamedTuple):
    """Replace the partition's state by the staged rows, as of `base.end`.

    The log between `base.end` and `end` stays. With `keeps`, messages from `end` on that the log of `base` lacks move
    to the quarantine. `has_parted`: that log is known to have none of them.
    """

    base: SnapshotBase
    end: Offset
    keeps: bool
    has_parted: bool = False


class Send(NamedTuple):
    to: NodeId
    message: Message


class Serve(NamedTuple):
    """Call `Replica.fetched(fetch, entries)` with entries from `fetch.end` on, within `FETCH_BYTES_MAX`."""

    fetch: Fetch


class ServeSnapshot(NamedTuple):
    """Call `Replica.page(ask, rows, is_last)` with the rows after `ask.after`, within `SNAPSHOT_ROWS_MAX`."""

    ask: AskSnapshot


class Submit(NamedTuple):
    """Submit a change to the coordinator; call `on_record` when it is made, `on_refused` when it is refused."""

    change: Change


class Reread(NamedTuple):
    """Another replica knows a newer record: read it."""


class Lead(NamedTuple):
    """This replica leads now: build the overlay from the entries between `applied` and the end of the log."""

    epoch: Epoch


class Follow(NamedTuple):
    """This replica no longer leads: drop the overlay."""


class Confirm(NamedTuple):
    """Answer these callers: their entries are as safe as the partition's mode promises."""

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
