"""Bounds and times of shards and backends, each with its unit last."""

from __future__ import annotations

from typing import Final

SHARDS_MAX: Final = 256
"""Shards of one cluster."""
ENTRY_BYTES_MAX: Final = 256 * 1024 * 1024
"""One commit of a node, as one entry of its shard's log. More is a fault of the node's own bounds."""
RECENT_BYTES_MAX: Final = 8 * 1024 * 1024
"""Entries of a shard that stay in memory once they are on the disk: a follower that keeps up is served from there."""
TRIM_ROWS_MAX: Final = 2_000
"""Rows of a log that is not needed any more which one commit deletes; the next one goes on."""
TRIM_BYTES_MAX: Final = 8 * 1024 * 1024
"""The same in bytes."""
QUARANTINE_BYTES_MAX: Final = 256 * 1024 * 1024
"""Confirmed messages that one copy of a shard keeps of what was cut off its log. At the bound the copy follows no log
that has parted from its own; the tail that came last may go beyond."""
QUARANTINE_ROWS_PER_READ: Final = 64
"""Chunks of a quarantine that are read in one turn of the loop."""
PAGES_WAITING_MAX: Final = 8
"""Pages of a snapshot that wait for this disk; the next one is dropped, and asked for again."""
PEER_FRAME_BYTES_MAX: Final = ENTRY_BYTES_MAX + 1024 * 1024
"""One message between backends."""
PEER_OUTBOX_BYTES_MAX: Final = 64 * 1024 * 1024
"""Messages that wait for the line to one other backend; beyond it they are dropped, and asked for again."""
PEER_HELLO_SECONDS_MAX: Final = 5.0
"""How long the other side of a new line may take to say who it is."""
PEER_RETRY_SECONDS: Final = 0.25
"""The pause before a line that broke is tried again."""
PEER_STRANGER_SECONDS: Final = 5.0
"""The same where the other backend speaks another version."""
LOOK_SECONDS: Final = 0.05
"""How often a backend looks after its shards."""
SESSION_SECONDS_DEFAULT: Final = 5
"""How long a backend that says nothing is taken for alive."""
COMMIT_STALL_SECONDS_MAX: Final = 1.0
"""A backend whose disk takes longer for one commit sends no heartbeat until it is done."""
STEP_SECONDS: Final = 0.2
"""How often the in-cluster manager looks at all shards."""
MANAGER_PAUSE_SECONDS: Final = 1.0
"""So long a backend whose manager met a fault of ours leaves the office to others."""
REGISTER_PAUSE_SECONDS: Final = 0.2
"""The pause after a registration that failed."""
HOLD_SECONDS: Final = 3.0
"""How long a leader that hands over waits for it to be made, before it serves again."""
HOME_SECONDS: Final = 30.0
"""So long a shard's first replica must have been in sync before it is given the leadership back."""
LANE_HOME_SECONDS: Final = 5.0
"""So long a host must have been in sync before its lane is given back to it."""
DRAIN_SECONDS_MAX: Final = 15.0
"""How long a backend that is told to stop waits until others lead what it led."""
HTTP_HEAD_BYTES_MAX: Final = 8 * 1024
"""The head of a request to a backend's health listener."""
HTTP_SECONDS_MAX: Final = 5.0
"""How long one such request may take."""
ROUND_SECONDS: Final = 1.0
"""How often the in-cluster manager asks whether copies should stand elsewhere."""
REPORT_SECONDS: Final = 5.0
"""How often a backend writes down how full its disk is and how far behind the followers of its shards are."""
EVENTS_MAX: Final = 256
"""What the in-cluster manager did and why: so many of the last events are kept at the coordinator."""
EVENT_TEXT_CHARS_MAX: Final = 400
"""The sentence of one event; a longer one is cut off."""
SEEN_SECONDS_MAX: Final = 5.0
"""How long the in-cluster manager waits to see what it wrote; then it looks again anyway."""
LET_GO_PAUSE_SECONDS: Final = 0.5
"""The pause before a backend asks again whether it may delete a copy."""
REPLACE_AFTER_SECONDS: Final = 300.0
"""So long a backend must have been away before others get its copies."""
REBALANCE_AFTER_SECONDS: Final = 60.0
"""So long nothing must have changed about the backends before copies are moved to even them out."""
SCRUB_BYTES_PER_SECOND: Final = 4 * 1024 * 1024
"""What one backend reads of its disk to see whether every row is still what was written."""
SCRUB_EVERY_SECONDS: Final = 86_400
"""So long after it has read everything it begins anew."""
SCRUB_ROWS_PER_READ: Final = 16
"""Rows that are checked in one turn of the loop."""
MOVE_BYTES_PER_SECOND: Final = 32 * 1024 * 1024
"""What one backend reads of its disk for copies that are made elsewhere."""
