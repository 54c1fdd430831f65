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
READY_RUNS_AHEAD = 8
"""Runs that wait in memory before newly committed chunks stay on disk as backlog."""
