"""Limits of the partition core, each with its unit last."""

LEASE_MS_MIN = 100
"""The shortest lease: with a visibility time-out of 0 a message would be free again before a consumer received it."""
IN_FLIGHT_PER_QUEUE_MAX = 120_000
IN_FLIGHT_PER_SUBSCRIPTION_MAX = 10_000
TAKE_MESSAGES_MAX = 64
"""Most messages that one consumer gets in its turn, so that consumers share a backlog evenly."""
SETTLED_TOKENS_MAX = 16_384
"""Recently used receipts that are remembered, so that an ack sent twice gets the same answer."""
DELAYED_RUNS_MAX = 100_000
"""Runs of messages waiting for a due time in memory; above it a nack's delay is refused."""
CHUNKS_LOADED_BYTES_MAX = 8 * 1024 * 1024
"""Chunks of one partition kept in memory for delivery; others are read again when they are needed."""
LOW_LANES_SHARE = 20
"""One of this many deliveries at least is of a lower priority, while lower priorities have ready messages."""
READY_RUNS_AHEAD = 8
"""Runs that wait in memory before newly committed chunks stay on disk as backlog."""
CAME_FREE_MAX = 1_024
"""Chunks with messages given back by consumers, noted to make room in a full queue; with more of them the log is
searched instead."""
HISTORY_ROWS_MAX = 16
"""Attempts in a message's history; the latest are kept."""
CLOCK_AHEAD_MS_MAX = 500
"""How far a stamp may be ahead of the clock that reads it; a node's own clock is never further off. A stamp beyond that
says nothing about order: a hybrid clock does not follow it, and a sorted queue uses the time of arrival instead."""
PRODUCERS_PER_PARTITION_MAX = 10_000
"""Producers whose numbers a partition of a queue with `sequencing: producer` keeps."""
GAPS_PER_PRODUCER_MAX = 64
"""Gaps in a producer's numbers that were given up and are kept one by one; beyond it the two oldest are joined."""
RECENT_RUNS_PER_PRODUCER_MAX = 64
"""Runs of a producer's latest messages whose offsets are kept, so that a duplicate is answered with its original's."""
FEW_KEYS_MAX = 8
"""Up to so many keys in a chunk are kept as bits by key, more of them as a column."""
KEYED_RUNS_IN_MEMORY_MAX = 65_536
"""Runs that wait behind locked keys of a lane in memory, about 200 bytes each."""
KEYED_CHUNKS_IN_MEMORY_MAX = 16_384
"""Chunks with such runs whose state stays in memory, about 1 KB each without their data."""
KEYED_COLUMNS_MAX = 256
"""Chunks of a lane whose whole column of keys stays in memory, up to 25 KB each; older ones keep unsettled keys."""
KEYED_LOOK_AHEAD_RUNS_MAX = 1_000_000
"""Runs that wait, in memory and on disk, behind locked keys or for older messages elsewhere in the queue; beyond it the
lane reads no further, and later messages wait too, until some are settled or released."""
LATE_CHUNKS_IN_MEMORY_MAX = 4_096
"""Chunks with late messages that a queue in strict order has in memory, ready, in flight or behind locked keys. While
it has so many, further late ones stay on disk, and later messages of their keys may go before them."""
KEYED_STUCK_MS = 1_000
"""A key whose messages did not move for this long is stuck: the messages behind it may be parked on disk."""
KEYED_SPILL_ROWS_MAX = 1_024
"""Rows that one commit parks or deletes for a lane."""
KEYED_LOADED_FIRST_MAX = 8
"""Draws that may go before one that must read from disk."""
KEYED_CROWD_MIN = 4
"""Keys that must have messages waiting before a lane in strict order delays its reading."""
KEYED_PATIENCE_MS = 20
"""How long such a lane waits for a message to be settled before it reads on."""
NOISY_MESSAGES_MIN = 32
"""Messages that a key must have in flight, or just settled, before it can be noisy."""
FAIR_MEMORY_MESSAGES = 256
"""Settled messages that still count as in flight: with few consumers only these show the share of each key."""
FAIR_AHEAD_CHUNKS_MAX = 8
"""Chunks that may be read in search of quiet keys before messages of a noisy key are drawn."""
FAIR_ASIDE_RUNS_MAX = 16_384
"""Runs of noisy keys that are set aside in memory, about 1 KB each with their chunk; then the lane reads no further."""
EPOCHS_TOLD_MAX = 8
"""Latest epochs of a stream's partition that gateways with readers of it are told. Readers of a gateway that has missed
more start again if their position is of an older epoch."""
