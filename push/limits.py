"""Bounds of the push side, each with its unit last."""

DELIVER_FRAME_BYTES_MAX = 256 * 1024
"""A deliver frame is cut before it grows past this; one bigger message makes one bigger frame."""
REPLY_FRAME_BYTES_MAX = 512 * 1024
OUTBOX_BYTES_SOFT_MAX = 256 * 1024
"""Above it a socket gets nothing more until the peer reads; its backlog stays on disk."""
OUTBOX_BYTES_HARD_MAX = 1024 * 1024
"""Above it a socket is not read either: a peer that sends requests without reading the answers must wait."""
WRITE_BLOCKED_SECONDS_MAX = 10.0
UNREAD_SECONDS_DEFAULT = 20
"""A socket that was sent messages and is silent for this long gets no more of them."""
LAPSE_MS_MIN = 10_000
"""A consumer that lets all its leases of this time or longer expire gets one message at a time until it settles one."""
HANDSHAKE_SECONDS_MAX = 10.0
"""From a whole request for a WebSocket to its answer, including look-ups at other services."""
FRAGMENTS_PER_FRAME_MAX = 16_384
"""Fragments in which a client may send one frame."""
FRAMES_PER_TURN_MAX = 256
"""Frames of one socket that are parsed in a turn of the loop, control frames included; others wait for the next
turn."""
READ_BYTES_PER_TURN_MAX = 128 * 1024
"""A connection of any kind that had more to read at once is not read again in the same turn of the loop."""
RUN_BYTES_MAX = 128 * 1024
"""Frames of one socket that are handled together in a turn of the loop."""
FINDINGS_MAX = 20
"""Errors in a request that its answer names; the answer says how many more there were."""
COUNTED_BYTES_MIN = 128 * 1024
"""The messages of a request or frame of at least this size are counted before it is decoded."""
COUNTED_OBJECTS_MIN = 10_000
"""In JSON, only if there are at least this many objects."""
CREDIT_MAX = 10_000
CREDIT_DEFAULT = 32
SUBSCRIPTIONS_PER_SESSION_MAX = 1_000
CATCH_UP_CHUNKS_PER_TURN = 64
"""Chunks that all replays of streams together get in a turn of the loop, at most."""
CATCH_UP_SLICE_SECONDS = 0.0005
"""How long such a turn may take, beyond the chunk in progress."""
CATCH_UP_WORK_SECONDS = 0.0002
"""If the rest of the loop's turn takes this long, there is other work."""
CATCH_UP_CALM_SECONDS = 0.1
"""For this long after that there is a pause between two slices."""
CATCH_UP_PAUSE_SECONDS = 0.001
CHUNK_CACHE_MAX = 16
RENDERED_PER_CHUNK_MAX = 8
"""Parts of a chunk cached as bytes: by encoding, subscription number and where a reader's credit cut it."""
SUBSCRIPTIONS_SHOWN_MAX = 100
"""Subscriptions of a connection that the list of connections names."""
PARKED_SESSIONS_MAX = 100_000
PARKED_TIMES_FREE = 9
"""A tenant may park this many times the number of places that are still free: alone, nine tenths of all."""
SESSION_CHARS_MAX = 128
SESSION_FETCH_SECONDS_MAX = 3.0
DRAIN_SECONDS_DEFAULT = 4
KEY_CHECK_SECONDS = 2.0
"""How often the keys of live sessions are checked for revocation."""
PUBLISHES_PER_ACK_MAX = 100
"""Queues that one ack may publish to in its transaction."""
DISPATCH_MESSAGES_MAX = 2_048
"""Messages that one queue dispatches in a turn of the loop; a backlog must not keep other queues' consumers waiting."""
PUBLISH_MS_DEFAULT = 10_000
"""How long a publish without a `timeout_ms` may wait for the disk."""
PUBLISH_MS_MAX = 60_000
"""The longest `timeout_ms` of a publish."""
LOOK_UPS_MAX = 2_000
"""Look-ups at a remote metadata service that one request may need before it can be handled."""
IDEMPOTENCY_KEY_CHARS_MAX = 255
"""Characters of an idempotency key."""
ACCEPTS_PER_SECOND_DEFAULT = 200
ACCEPTS_BURST_DEFAULT = 500
UNCONFIRMED_BYTES_MAX = 128 * 1024 * 1024
"""Publishes of the whole process that are not confirmed yet; a tenant may hold as much as is still free."""
REFUSED_SOCKET_MS_MIN = 1_000
REFUSED_SOCKET_MS_MAX = 30_000
"""A socket that is refused now gets a retry time between these two, drawn evenly."""
REFUSED_PUBLISH_MS_MIN = 500
REFUSED_PUBLISH_MS_MAX = 3_000
"""The same for any other work that is refused under load."""
SLOWEST_CLOSED_FRACTION = 0.01
"""Fraction of all sockets that is closed each second while memory is short: those that have not read for the
longest."""
SLOWEST_BLOCKED_SECONDS_MIN = 1.0
"""Only a socket that has not read for this long is one of them."""
HELD_REPLAY_SECONDS = 0.5
"""How often replays that are held under load check whether they may go on."""
DRAIN_WAVE_SECONDS = 0.05
"""The time between two waves of a drain."""
STREAM_RETRY_MS_MIN = 1_000
STREAM_RETRY_MS_MAX = 15_000
"""A drained SSE stream is asked to come back after a time between these two, or later if there are many sockets."""
BYE_RETRY_MS_MIN = 200
"""The least that a drained WebSocket is asked to wait: the server has to start again."""
PINGS_PER_SECOND_MAX = 100
"""Pings and pongs of one socket; one that sends more is closed with 4008."""
REFUSED_PER_SECOND_MAX = 1_000
"""Requests of one socket that are refused, publishes aside; one that has more is closed with 4008."""
SPAN_LINKS_MAX = 32
"""Contexts of messages that the span of their delivery links to; an attribute has their total number."""
FETCH_AGAIN_SECONDS = 1.0
"""When a stream's reader tries again after its messages could not be fetched."""
BEAT_MS_MAX = 5_000
"""How much of the time since the last beat of housekeeping counts against sessions: the process may have been
suspended."""
