"""Limits of a node, each with its unit last."""

INBOX_MESSAGES_MAX = 10_000
INBOX_BYTES_MAX = 32 * 1024 * 1024
"""Publishes of one partition that may wait for a commit; above it they are refused as `overloaded`."""
TIMED_CALLS_LOOKED_AT_PER_MILLISECOND = 250
"""Publishes waiting for the disk that are checked per millisecond for their time limit: with 5,000 of them a caller may
learn 20 ms late that its time is over."""
STALE_ALARMS_KEPT = 64
"""Cancelled timers that may be kept until their time, besides as many as there are live ones."""
SWEEP_ROWS_PER_COMMIT = 256
RECOVERY_ROWS_PER_READ = 256
PEEK_MESSAGES_MAX = 100_000
"""Messages that one peek request reads before it answers with a cursor."""
PEEK_LEASES_MAX = 20_000
"""Leases that are searched for the one that holds a message."""
PEEK_SECONDS_MAX = 10
"""How long one peek request works before it answers with a cursor."""
LOOK_SLICE_SECONDS = 0.0003
"""How long a peek or a search works before all other work has a turn."""
LOOK_PAUSE_SECONDS = 0.003
"""How long a peek or a search pauses between slices while other work keeps the loop busy."""
SPACE_CHECK_SECONDS = 1.0
KEPT_LOOK_SECONDS = 60.0
"""How often leases from before a start are checked for their end; what is kept for the holders of ended ones is
dropped."""
CLOCK_LOOK_SECONDS = 1.0
"""How often the clock is read while anything waits for a time: how late that may be after the machine slept."""
SEEN_SECONDS = 3600.0
"""How often the time is noted in the folder, for the next start to compare its clock with."""
CLOCK_JUMP_DAYS_UNTOLD = 30
"""The most days since the last time in the folder of which a start says nothing."""
FAILED_TICK_MS = 1_000
"""How long after an internal error the timers of a queue are tried again."""
VERIFY_AT_START_BYTES_MAX = 1 << 30
"""A bigger file is not read through before serving; entries are verified whenever they are read."""
READS_PER_TAKE_MAX = 64
"""Chunks that one search for ready messages reads before all other work has a turn."""
EVICTION_READS_PER_COMMIT = 1_024
"""Chunks that a full queue reads in one commit to make room. If that is not enough, the new messages are stored all the
same, and the limit is exceeded until the next commits."""
EVICTION_CHUNKS_KEPT = 1_024
"""Chunks of one priority with messages returned by consumers that a full queue remembers; beyond that it searches the
log for them."""
DUE_ROWS_PER_TICK = 1_000
EXPIRING_CHUNKS_PER_TICK = 64
"""Chunks whose messages expire together; the others follow in the next turn of the loop."""
EXPIRING_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of a queue's chunks that may be in commits because their messages expired; the rest expires afterwards."""
TRANSFERS_AT_ONCE_MAX = 16
"""Leases that one transfer to another queue moves at the same time."""
TRANSFER_LEASE_MS = 60_000
TRANSFER_RETRY_SECONDS = 1.0
"""How long messages wait before a queue that could not take them is tried again."""
CANCEL_LOOKS_MAX = 100_000
"""Messages of a backlog that are searched for an id that its producer gave; scheduled ones are found directly."""
GROUPS_PER_STREAM_MAX = 1_000
"""Consumer groups of a stream."""
GROUP_IDLE_MS = 60_000
"""A group without a consumer that holds nothing leaves memory after so long; then it costs commits nothing."""
GROUP_READS_MAX = 1_024
"""Chunks that a group in mode `offsets` reads for receipts from before a restart; beyond them receipts are stale."""
COUNTED_CHUNKS = 64
"""A stream stores a message count once in so many chunks, so that a lag needs no long count."""
RETENTION_STEP_MS = 1_000
"""The interval at which a stream looks for messages that are too old."""
RETENTION_CHUNKS_PER_COMMIT = 32
"""Chunks that a stream drops with one commit, besides twice as many as the commit adds."""
RELEASED_PER_ROW_MAX = 256
"""Messages in one row of a sorted queue's release order."""
ORDER_ROWS_TIDIED_MAX = 16
"""Used-up rows of the release order that one commit deletes."""
SHARED_CYCLE_MESSAGES_MAX = 2_048
"""Messages that one queue publishes in a commit cycle shared with other queues; the rest follows in the next."""
CYCLE_BYTES_SOFT_MAX = 8 * 1024 * 1024
"""Bytes of publishes that one commit takes: the call that reaches it is the last, and the rest follows in the next.

A commit goes to the disk, and to a shard's other replicas, as a whole: no caller gets its answer before it has arrived.
"""
DUE_ROWS_LOOKED_AT = 64
"""Rows of the schedule that are read at once to find the next message of one priority."""
STRANGE_RECEIPTS_PER_CYCLE = 256
"""Receipts without a lease in memory that one queue settles in a commit cycle: each may need a chunk to be read."""
DRAIN_CHUNKS_PER_LOOK = 8
"""Chunks that are read at once to see whether anything of a moved slot is left in its old partition."""
DRAIN_CHUNKS_KEPT = 64
"""Chunks whose unsettled messages are remembered between two commits: all slots of a move ask about the same ones."""
SLOT_LOOK_SECONDS = 0.05
"""How often moved slots check whether what they wait for is settled, if nothing else triggers a check."""
LEDGER_CUTS_AT_ONCE = 256
"""Partitions that write a row of the ledger with one commit."""
LEDGER_ROWS_PER_READ = 256
"""Rows of the ledger or of the audit that are read, and written to one file, at once."""
LEDGER_DAYS_SWEPT_AT_ONCE = 256
"""Expired daily totals that are deleted together with the rows that one file has taken."""
EPOCHS_MAX = 100
"""Epochs of a partition that are told apart; a reader with a cursor of an older one starts anew. A restore begins an
epoch, and in mode `async` each leadership does."""
