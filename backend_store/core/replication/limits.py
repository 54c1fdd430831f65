"""Limits and time-outs of replication, each with its unit last."""

FETCH_BYTES_MAX = 1024 * 1024
"""Entries of one partition in one answer to a fetch; a single bigger entry is sent alone."""
FETCH_WAIT_MS = 500
"""How long a leader holds a fetch for which there are no new entries."""
FETCH_TIMEOUT_MS = 1_500
"""How long a follower waits for an answer before it asks again; only the answer to the latest request counts."""
FETCH_TIMEOUT_MS_MAX = 60_000
"""The same when answers take long: twice the longest time seen, up to this."""
MISSED_FACTOR_MAX = 4
"""Bound of the time-out while there are no answers, in shortest time-outs: it doubles with each missing answer."""
EARLY_PAUSE_MS = 50
"""How long a follower waits before it asks a leader again that has not heard of its epoch; doubled each time."""
LAG_MS_MAX = 2_000
"""A follower that has not been at the end of the log for this long is removed from the in-sync set."""
UNFOLLOWED_MS = 4_000
"""How long a sync leader has too few replicas in sync and no fetches before it resigns. With the lag before it that is
longer than a session: followers that died are known to be gone by then, and are not elected."""
UNFOLLOWED_BYTES_PER_MS = 500
"""The leader waits longer while it has bytes to send, 1 ms for this many: a big entry on its way is not silence. A line
is expected to be twice as fast."""
CHANGE_RETRY_MS = 1_000
"""How long a change of the partition's record waits for an answer before the same change is submitted again."""
LOOK_MS = 100
"""How often a leader checks for followers that lag, joins that are due and fetches that have waited."""
HANDOVER_MS_MAX = 2_000
"""A handover that has not submitted its change by then is given up, and the leader accepts publishes again."""
PEER_LEASE_MS = 2_000
"""How long after its last fetch a follower lets its leader confirm alone; a new leader waits until that is over."""
UNCOMMITTED_ENTRIES_MAX = 10_000
UNCOMMITTED_BYTES_MAX = 32 * 1024 * 1024
"""Entries that are not both final and applied; a leader with more refuses publishes as `overloaded`."""
WAITERS_MAX = 100_000
"""Callers that wait for an entry to be confirmed; further ones are refused as `overloaded`."""
CATCHUP_BYTES_MAX = 1024 * 1024 * 1024
"""Log kept for a replica that is behind; beyond it the log is trimmed, and the replica takes a snapshot."""
WEIGHT_MARKS_MAX = 128
"""Offsets of the log at which its size so far is known; more are thinned out."""
SNAPSHOT_ROWS_MAX = 1_000
SNAPSHOT_BYTES_MAX = 1024 * 1024
"""One page of a snapshot."""
SNAPSHOT_KEEP_MS = 30_000
"""How long after the last page of a snapshot the log that follows it is kept for the replica."""
