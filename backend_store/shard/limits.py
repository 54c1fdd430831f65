"""Limits and times of shards and backends, each with its unit last."""

from __future__ import annotations

from typing import Final

SHARDS_MAX: Final = 256
"""Shards of one cluster."""
ENTRY_BYTES_MAX: Final = 256 * 1024 * 1024
"""One commit of a node, as one entry of its shard's log. A bigger one is a bug: the node's own limits are lower."""
RECENT_BYTES_MAX: Final = 8 * 1024 * 1024
"""Entries of a shard that stay in memory once they are on the disk: a follower that keeps up is served from there."""
TRIM_ROWS_MAX: Final = 2_000
"""Rows of unneeded log that one commit deletes; the next commit continues."""
TRIM_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes of unneeded log that one commit deletes."""
QUARANTINE_BYTES_MAX: Final = 256 * 1024 * 1024
"""Quarantined messages that one copy of a shard keeps of what was truncated from its log. At the limit the copy follows
no log that has diverged from its own; the last tail may exceed the limit."""
QUARANTINE_ROWS_PER_READ: Final = 64
"""Chunks of a quarantine that are read in one turn of the loop."""
PAGES_WAITING_MAX: Final = 8
"""Pages of a snapshot that wait for this disk; the next one is dropped, and requested again."""
PEER_FRAME_BYTES_MAX: Final = ENTRY_BYTES_MAX + 1024 * 1024
"""One message between backends."""
PEER_OUTBOX_BYTES_MAX: Final = 64 * 1024 * 1024
"""Messages that wait for the connection to one other backend; further ones are dropped, and sent again on request."""
PEER_HELLO_SECONDS_MAX: Final = 5.0
"""How long the other side of a new connection may take to say who it is."""
PEER_RETRY_SECONDS: Final = 0.25
"""The pause before a broken connection is dialled again."""
PEER_STRANGER_SECONDS: Final = 5.0
"""The same pause where the other backend speaks another version."""
LOOK_SECONDS: Final = 0.05
"""How often a backend checks its shards."""
SESSION_SECONDS_DEFAULT: Final = 5
"""How long a silent backend counts as alive."""
COMMIT_STALL_SECONDS_MAX: Final = 1.0
"""A backend whose disk takes longer for one commit sends no heartbeat until the commit is done."""
STEP_SECONDS: Final = 0.2
"""How often the in-cluster manager checks all shards."""
MANAGER_PAUSE_SECONDS: Final = 1.0
"""How long a backend whose manager failed by a bug lets others manage."""
REGISTER_PAUSE_SECONDS: Final = 0.2
"""The pause after a failed registration."""
HOLD_SECONDS: Final = 3.0
"""How long a leader that hands over waits for the next leader, before it serves again."""
HOME_SECONDS: Final = 30.0
"""How long a shard's first replica must have been in sync before it gets the leadership back."""
LANE_HOME_SECONDS: Final = 5.0
"""How long a host must have been in sync before it gets its lane back."""
DRAIN_SECONDS_MAX: Final = 15.0
"""How long a backend that is told to stop waits until others lead what it led."""
HTTP_HEAD_BYTES_MAX: Final = 8 * 1024
"""The head of a request to a backend's health listener."""
HTTP_SECONDS_MAX: Final = 5.0
"""How long one such request may take."""
ROUND_SECONDS: Final = 1.0
"""How often the in-cluster manager decides whether copies should be elsewhere."""
REPORT_SECONDS: Final = 5.0
"""How often a backend reports how full its disk is and how far behind the followers of its shards are."""
EVENTS_MAX: Final = 256
"""Events kept at the coordinator: what the in-cluster manager did last, and why."""
EVENT_TEXT_CHARS_MAX: Final = 400
"""The sentence of one event; a longer one is truncated."""
SEEN_SECONDS_MAX: Final = 5.0
"""How long the in-cluster manager waits to see its own writes; then it goes on anyway."""
LET_GO_PAUSE_SECONDS: Final = 0.5
"""The pause before a backend asks again whether it may delete a copy."""
REPLACE_AFTER_SECONDS: Final = 300.0
"""How long a backend must have been away before others get its copies."""
REBALANCE_AFTER_SECONDS: Final = 60.0
"""How long the backends must be unchanged before copies are moved to even them out."""
SCRUB_BYTES_PER_SECOND: Final = 4 * 1024 * 1024
"""How fast one backend reads its disk to check that every row is still what was written."""
SCRUB_EVERY_SECONDS: Final = 86_400
"""The pause after it has checked everything."""
SCRUB_ROWS_PER_READ: Final = 16
"""Rows that are checked in one turn of the loop."""
MOVE_BYTES_PER_SECOND: Final = 32 * 1024 * 1024
"""How fast one backend reads its disk for copies that are made elsewhere."""
