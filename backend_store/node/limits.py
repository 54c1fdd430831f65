"""Bounds of a node, each with its unit last."""

INBOX_MESSAGES_MAX = 10_000
INBOX_BYTES_MAX = 32 * 1024 * 1024
"""Publishes of one partition that may wait for a commit; above it they are refused as `overloaded`."""
TIMED_CALLS_LOOKED_AT_PER_MILLISECOND = 250
"""Publishes on their way to the disk that are looked at for some whose time is over: of 5,000 each may hear of it 20 ms
later."""
STALE_ALARMS_KEPT = 64
"""Of those who are to be woken no more, so many may be kept until their time, beside as many as are."""
SWEEP_ROWS_PER_COMMIT = 256
RECOVERY_ROWS_PER_READ = 256
PEEK_MESSAGES_MAX = 100_000
"""Messages one peek request looks at before it answers with a cursor."""
PEEK_LEASES_MAX = 20_000
"""Leases that are looked through for the one that has a message."""
PEEK_SECONDS_MAX = 10
"""How long one peek request looks before it answers with a cursor."""
LOOK_SLICE_SECONDS = 0.0003
"""How long a peek or a search works before everybody else has a turn."""
LOOK_PAUSE_SECONDS = 0.003
"""How long it steps back then, where others are at work."""
SPACE_CHECK_SECONDS = 1.0
KEPT_LOOK_SECONDS = 60.0
"""How often it is looked which leases of before a start have ended: what is kept of them for their holders goes."""
CLOCK_LOOK_SECONDS = 1.0
"""How often the clock is looked at where something waits for a time: how late that is after the machine slept."""
FAILED_TICK_MS = 1_000
"""How long after a fault of ours the clock of a queue is looked at again."""
VERIFY_AT_START_BYTES_MAX = 1 << 30
"""A bigger file is not read through before serving; entries are verified whenever they are read."""
READS_PER_TAKE_MAX = 64
"""Chunks that one look for messages reads before everybody else has a turn."""
EVICTION_READS_PER_COMMIT = 1_024
"""Chunks that a full queue reads in one commit to make room. Where that is not enough, the messages that were to have
it are stored all the same, and the limit is passed until the next commits."""
EVICTION_CHUNKS_KEPT = 1_024
"""Chunks of one priority that came back from consumers which a full queue knows of; where there are more, it looks for
them in the log."""
DUE_ROWS_PER_TICK = 1_000
EXPIRING_CHUNKS_PER_TICK = 64
"""Chunks whose messages expire together; the others follow in the next turn of the loop."""
EXPIRING_BYTES_MAX = 16 * 1024 * 1024
"""So much of a queue, in chunks, may be on its way out because it expired; the rest expires after it."""
TRANSFERS_AT_ONCE_MAX = 16
"""Leases that one transfer to another queue moves at the same time."""
TRANSFER_LEASE_MS = 60_000
TRANSFER_RETRY_SECONDS = 1.0
"""How long messages wait for a queue that cannot take them now."""
CANCEL_LOOKS_MAX = 100_000
"""Messages of a backlog that are looked at for an id that its producer gave; scheduled ones are found at once."""
GROUPS_PER_STREAM_MAX = 1_000
"""Consumer groups of a stream."""
GROUP_IDLE_MS = 60_000
"""A group without a consumer that holds nothing leaves memory after so long; it costs commits nothing then."""
GROUP_READS_MAX = 1_024
"""Chunks that are read for receipts of a group with offsets from before a restart; others are stale."""
COUNTED_CHUNKS = 64
"""Of a stream: after so many chunks a row says how many messages came before, so that a lag needs no long count."""
RETENTION_STEP_MS = 1_000
"""How far apart a stream looks for messages that are too old."""
RETENTION_CHUNKS_PER_COMMIT = 32
"""Chunks that a stream drops with one commit, beside as many as the commit adds."""
RELEASED_PER_ROW_MAX = 256
"""Messages in one row of a sorting queue's release order."""
ORDER_ROWS_TIDIED_MAX = 16
"""Used-up rows of the release order that one commit takes along."""
SHARED_CYCLE_MESSAGES_MAX = 2_048
"""Messages that one queue publishes in a commit cycle which others share; the rest follows in the next."""
CYCLE_BYTES_SOFT_MAX = 8 * 1024 * 1024
"""Publishes that one commit takes: the call with which there are so many is its last, the rest follows in the next.

A commit goes to the disk, and to a shard's other replicas, as a whole: nobody's answer comes before it has arrived.
"""
DUE_ROWS_LOOKED_AT = 64
"""Rows of the schedule that are read at once for the next message of one priority."""
STRANGE_RECEIPTS_PER_CYCLE = 256
"""Receipts without a lease in memory that one queue settles in a commit cycle: each may be a chunk to read."""
DRAIN_CHUNKS_PER_LOOK = 8
"""Chunks that are read at once to see whether something of a slot is left in the partition that it went from."""
DRAIN_CHUNKS_KEPT = 64
"""Chunks whose rest is known from one commit to the next while such looks go on: all slots ask about the same ones."""
SLOT_LOOK_SECONDS = 0.05
"""How often it is asked whether what a moved slot waits for is settled, while nothing else says so."""
LEDGER_CUTS_AT_ONCE = 256
"""Partitions that cut a row of the ledger with one commit."""
LEDGER_ROWS_PER_READ = 256
"""Rows of the ledger or of the audit that are read, and put into one file, at once."""
LEDGER_DAYS_SWEPT_AT_ONCE = 256
"""A day's totals that are too old, and go with the rows that one file has taken."""
EPOCHS_MAX = 100
"""Epochs of a partition that are told apart; who comes with a cursor of an older one begins anew. A restore begins one,
and in mode `async` each leadership."""
