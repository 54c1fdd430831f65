"""Bounds of the partition core, each with its unit last."""

LEASE_MS_MIN = 100
"""The shortest lease: with a visibility time-out of 0 a message would be free again before it reached anybody."""
IN_FLIGHT_PER_QUEUE_MAX = 120_000
IN_FLIGHT_PER_SUBSCRIPTION_MAX = 10_000
TAKE_MESSAGES_MAX = 64
"""Most messages one consumer gets in its turn, so that consumers share a backlog evenly."""
SETTLED_TOKENS_MAX = 16_384
"""Recently used-up receipts that are remembered, so that an ack sent twice is answered alike."""
DELAYED_RUNS_MAX = 100_000
"""Runs of messages waiting for a due time in memory; above it a nack's delay is refused."""
CHUNKS_LOADED_BYTES_MAX = 8 * 1024 * 1024
"""Chunks of one partition kept in memory for delivery; the others are read again when they are needed."""
LOW_LANES_SHARE = 20
"""Of so many deliveries at least one goes to lower priorities, while they wait."""
READY_RUNS_AHEAD = 8
"""Runs that wait in memory before newly committed chunks stay on disk as backlog."""
CAME_FREE_MAX = 1_024
"""Chunks that came back from consumers, noted for whoever makes room in a full queue; where there are more, he looks
for them in the log."""
HISTORY_ROWS_MAX = 16
"""Attempts that a message's history names; the latest stay."""
CLOCK_AHEAD_MS_MAX = 500
"""How far a stamp may lie ahead of the clock that reads it; a node's own clock is never further off. One beyond it says
nothing about order: a hybrid clock does not follow it, and a sorted queue takes the time of arrival instead."""
PRODUCERS_PER_PARTITION_MAX = 10_000
"""Producers whose numbers a partition of a queue with `sequencing: producer` keeps."""
GAPS_PER_PRODUCER_MAX = 64
"""Gaps in a producer's numbers that were given up and are known one by one; beyond it the two oldest become one."""
RECENT_RUNS_PER_PRODUCER_MAX = 64
"""Runs of a producer's latest messages whose offsets are known, so that a repeat is answered with its original's."""
FEW_KEYS_MAX = 8
"""Keys of a chunk up to which they are kept as bits by key, and not as a column."""
KEYED_RUNS_IN_MEMORY_MAX = 65_536
"""Runs that wait behind locked keys of a lane in memory, about 200 bytes each."""
KEYED_CHUNKS_IN_MEMORY_MAX = 16_384
"""Chunks that such runs keep known, about 1 KB each without their data."""
KEYED_COLUMNS_MAX = 256
"""Chunks of a lane whose whole column of keys stays in memory, up to 25 KB each; older ones keep what is unsettled."""
KEYED_LOOK_AHEAD_RUNS_MAX = 1_000_000
"""Runs that wait, in memory and on disk, behind locked keys, or for older messages of theirs at another place of the
queue; then the lane reads no further, and what is behind them waits too, until some are settled or may go."""
KEYED_STUCK_MS = 1_000
"""A key whose messages did not move for so long is stuck: what waits behind it may go to the disk."""
KEYED_SPILL_ROWS_MAX = 1_024
"""Rows that one commit parks or deletes for a lane."""
KEYED_LOADED_FIRST_MAX = 8
"""Draws that may go before one that has to read from the disk."""
KEYED_CROWD_MIN = 4
"""Keys that must have messages waiting before a lane in strict order is in no hurry to read on."""
KEYED_PATIENCE_MS = 20
"""How long it then waits for something to be settled."""
NOISY_MESSAGES_MIN = 32
"""Messages that a key must have in flight, or just settled, before it can be a noisy one."""
FAIR_MEMORY_MESSAGES = 256
"""Messages that count as in flight after they are settled: with few consumers only these tell who had how much."""
FAIR_AHEAD_CHUNKS_MAX = 8
"""Chunks that may be read in search of quiet keys before the next draw goes to a noisy one."""
FAIR_ASIDE_RUNS_MAX = 16_384
"""Runs of noisy keys that are set aside in memory, about 1 KB each with their chunk; then the lane reads no further."""
EPOCHS_TOLD_MAX = 8
"""The last ones of a stream's partition, to gateways that read it. A gateway that heard of none for longer has its
readers begin anew where their place was written in an older one."""
