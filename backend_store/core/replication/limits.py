"""Bounds and times of replication, each with its unit last."""

FETCH_BYTES_MAX = 1024 * 1024
"""Entries of one partition in one answer to a fetch; a single bigger entry goes alone."""
FETCH_WAIT_MS = 500
"""How long a leader keeps a fetch that has nothing to bring."""
FETCH_TIMEOUT_MS = 1_500
"""After so long without an answer a follower asks again; only the answer to the latest request counts."""
FETCH_TIMEOUT_MS_MAX = 60_000
"""The same where answers were seen to take long: twice the longest one, up to this."""
MISSED_FACTOR_MAX = 4
"""So many times the shortest time-out, at most, where no answer was seen: it doubles with each one that is missed."""
EARLY_PAUSE_MS = 50
"""After so long a follower asks a leader again that had not heard of its leadership; each time after twice as long."""
LAG_MS_MAX = 2_000
"""A follower that has not been at the end of the log for so long is taken out of the in-sync set."""
UNFOLLOWED_MS = 4_000
"""So long a sync leader has too few in sync and no replica that asks it, before it lets another one lead. With the lag
before it that is longer than a session: followers that died are known to be gone by then, and are not made leaders."""
UNFOLLOWED_BYTES_PER_MS = 500
"""It waits longer while it has something to send: a big entry on its way is no silence, on a line twice as fast."""
CHANGE_RETRY_MS = 1_000
"""After so long without an answer a change of the partition's record is submitted again, the very same one."""
LOOK_MS = 100
"""How often a leader looks for followers that lag, joins that are due and fetches that have waited."""
HANDOVER_MS_MAX = 2_000
"""A handover that has not come to its change by then is given up, and the leader takes publishes again."""
PEER_LEASE_MS = 2_000
"""So long after its last fetch a follower lends its leader the right to confirm alone; a new leader waits it out."""
UNCOMMITTED_ENTRIES_MAX = 10_000
UNCOMMITTED_BYTES_MAX = 32 * 1024 * 1024
"""Entries above the high watermark; a leader with more refuses publishes as `overloaded`."""
WAITERS_MAX = 100_000
"""Callers that wait for an entry to be confirmed; further ones are refused as `overloaded`."""
CATCHUP_BYTES_MAX = 1024 * 1024 * 1024
"""Log that is kept for a replica that is behind; beyond it the replica is written off and takes a snapshot."""
WEIGHT_MARKS_MAX = 128
"""Places of the log at which its size so far is known; more are thinned out."""
SNAPSHOT_ROWS_MAX = 1_000
SNAPSHOT_BYTES_MAX = 1024 * 1024
"""One page of a snapshot."""
SNAPSHOT_KEEP_MS = 30_000
"""So long after its last page the log that a snapshot needs afterwards is kept for it."""
