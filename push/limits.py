"""Bounds of the push side, each with its unit last."""

DELIVER_FRAME_BYTES_MAX = 256 * 1024
"""A deliver frame is cut before it grows past this; one bigger message makes one bigger frame."""
REPLY_FRAME_BYTES_MAX = 512 * 1024
OUTBOX_BYTES_SOFT_MAX = 256 * 1024
"""Above it a socket gets nothing more until the peer reads; its backlog stays on disk."""
OUTBOX_BYTES_HARD_MAX = 1024 * 1024
"""Above it a socket is not read either: a peer that asks without reading the answers must wait."""
WRITE_BLOCKED_SECONDS_MAX = 10.0
CREDIT_MAX = 10_000
CREDIT_DEFAULT = 32
SUBSCRIPTIONS_PER_SESSION_MAX = 1_000
CATCH_UP_CHUNKS_PER_TURN = 64
"""Chunks of the past that all who replay streams together get in a turn of the loop, at most."""
CATCH_UP_SLICE_SECONDS = 0.0005
"""How long such a turn may take, beyond the chunk that is under way."""
CATCH_UP_WORK_SECONDS = 0.0002
"""When a turn of everybody else takes so long, others are at work."""
CATCH_UP_CALM_SECONDS = 0.1
"""For so long after that there is a pause between two slices."""
CATCH_UP_PAUSE_SECONDS = 0.001
CHUNK_CACHE_MAX = 16
RENDERED_PER_CHUNK_MAX = 8
"""Parts of a chunk kept as bytes: by encoding, subscription number and where a reader's credit cut it."""
PARKED_SESSIONS_MAX = 100_000
DRAIN_WAVE_SOCKETS = 200
DRAIN_SECONDS_MAX = 4.0
KEY_CHECK_SECONDS = 2.0
"""How often live sessions are held against revoked keys."""
PUBLISHES_PER_ACK_MAX = 100
"""Queues that one ack may publish to in its step."""
DISPATCH_MESSAGES_MAX = 2_048
"""Messages that one queue deals out in a turn of the loop; a backlog must not keep other queues' consumers waiting."""
