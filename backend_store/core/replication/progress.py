"""The progress of a leader's followers: how far each has the log on disk, in which incarnation, and since when."""

from __future__ import annotations

from collections.abc import Mapping

from backend_store.core.replication.messages import AskSnapshot, Fetch
from backend_store.core.replication.record import DiskId, Identity, NodeId
from backend_store.model import Offset


class Progress:
    """The progress of one follower in one incarnation."""

    __slots__ = (
        "asked_ms",
        "caught_up_ms",
        "end",
        "fetched_end",
        "fetched_ms",
        "heard_ms",
        "identity",
        "is_whole",
        "parked",
        "request",
        "snapshot",
        "snapshot_ms",
    )

    def __init__(self, identity: Identity, now_ms: int):
        self.identity = identity
        self.asked_ms = now_ms
        self.end: Offset | None = None
        """It has the leader's log on disk up to here; None until a fetch of this incarnation has shown it."""
        self.is_whole = False
        self.caught_up_ms = now_ms
        self.fetched_ms = now_ms
        self.fetched_end = Offset(0)
        """Where the leader's log ended at the last fetch: a follower that is there by the next one keeps up."""
        self.heard_ms: int | None = None
        self.parked: Fetch | None = None
        self.request = -1
        self.snapshot: Offset | None = None
        self.snapshot_ms = 0

    def matched(self, fetch: Fetch, log_end: Offset, now_ms: int) -> None:
        """Notes a fetch that shows that the follower's log equals the leader's up to `fetch.end`."""
        self.end = fetch.end if self.end is None else max(self.end, fetch.end)
        self.is_whole = fetch.is_whole
        self.snapshot = None
        if fetch.end >= log_end:
            self.caught_up_ms = now_ms
        elif fetch.end >= self.fetched_end:
            self.caught_up_ms = max(self.caught_up_ms, self.fetched_ms)
        self.fetched_ms, self.fetched_end = now_ms, log_end
        if fetch.heard_ms:
            self.heard_ms = max(self.heard_ms or 0, fetch.heard_ms)


class Followers:
    """All followers of one epoch. The leader owns it."""

    def __init__(self, began_ms: int):
        self._began_ms = began_ms
        self._by_node: dict[NodeId, Progress] = {}

    def of(self, request: Fetch | AskSnapshot, now_ms: int) -> Progress | None:
        """Returns the progress of the sender, which a new incarnation starts anew; None for an outdated request."""
        sender = request.sender
        found = self._by_node.get(sender.node)
        if found is None or sender.inc > found.identity.inc:
            found = self._by_node[sender.node] = Progress(sender, now_ms)
        if sender.inc < found.identity.inc or request.request <= found.request:
            return None
        found.request = request.request
        found.asked_ms = now_ms
        found.parked = None
        return found

    def get(self, node: NodeId) -> Progress | None:
        return self._by_node.get(node)

    def end_of(self, node: NodeId, disks: Mapping[NodeId, DiskId]) -> Offset:
        """Returns up to where a member has the log; 0 if it is not on the disk with which it became a member."""
        found = self._by_node.get(node)
        if found is None or found.end is None or found.identity.disk != disks.get(node):
            return Offset(0)
        return found.end

    def caught_up_ms(self, node: NodeId) -> int:
        found = self._by_node.get(node)
        return self._began_ms if found is None else found.caught_up_ms

    def asked_ms(self, node: NodeId) -> int:
        """Returns when the node last sent a request; 0: never."""
        found = self._by_node.get(node)
        return 0 if found is None else found.asked_ms

    def parked(self) -> list[Progress]:
        return [found for found in self._by_node.values() if found.parked is not None]
