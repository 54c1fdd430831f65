"""Bounds of the push side, each with its unit last."""

DELIVER_FRAME_BYTES_MAX = 256 * 1024
"""A deliver frame is cut before it grows past this; one bigger message makes one bigger frame."""
REPLY_FRAME_BYTES_MAX = 512 * 1024
OUTBOX_BYTES_SOFT_MAX = 256 * 1024
"""Above it a socket gets nothing more until the peer reads; its backlog stays on disk."""
OUTBOX_BYTES_HARD_MAX = 1024 * 1024
"""Above it a socket is not read either: a peer that asks without reading the answers must wait."""
WRITE_BLOCKED_SECONDS_MAX = 10.0
UNREAD_SECONDS_DEFAULT = 20
"""How long a socket that was sent messages may be silent until it gets no more of them."""
LAPSE_MS_MIN = 10_000
"""A consumer that lets all its leases of this time or longer run out has one message at a time until it settles one."""
HANDSHAKE_SECONDS_MAX = 10.0
"""From a whole request for a WebSocket to its answer, whoever has to be asked for it."""
FRAGMENTS_PER_FRAME_MAX = 16_384
"""Pieces in which a client may send one frame."""
FRAMES_PER_TURN_MAX = 256
"""Frames of one socket that are parsed in a turn of the loop, control frames among them; others wait for the next."""
READ_BYTES_PER_TURN_MAX = 128 * 1024
"""A connection of any kind that had more to read at once is not read again in the same turn of the loop."""
RUN_BYTES_MAX = 128 * 1024
"""Frames of one socket that are handled together in a turn of the loop."""
FINDINGS_MAX = 20
"""Findings in a request that its answer names; it says how many more there were."""
COUNTED_BYTES_MIN = 128 * 1024
"""A request or frame from this size on has its messages counted before they are decoded."""
COUNTED_OBJECTS_MIN = 10_000
"""Unless, in JSON, it has fewer objects than this."""
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
SUBSCRIPTIONS_SHOWN_MAX = 100
"""Subscriptions of a connection that the list of connections names."""
PARKED_SESSIONS_MAX = 100_000
PARKED_TIMES_FREE = 9
"""A tenant may have so many times as many of them as are still free: alone nine tenths of all."""
DRAIN_SECONDS_DEFAULT = 4
KEY_CHECK_SECONDS = 2.0
"""How often live sessions are held against revoked keys."""
PUBLISHES_PER_ACK_MAX = 100
"""Queues that one ack may publish to in its step."""
DISPATCH_MESSAGES_MAX = 2_048
"""Messages that one queue deals out in a turn of the loop; a backlog must not keep other queues' consumers waiting."""
PUBLISH_MS_DEFAULT = 10_000
"""How long a publish may wait for the disk that names no time."""
PUBLISH_MS_MAX = 60_000
"""The longest time that a publish may name."""
LOOK_UPS_MAX = 2_000
"""Things that one request may have to look up at a remote metadata service before it can be handled."""
IDEMPOTENCY_KEY_CHARS_MAX = 255
"""Characters of an idempotency key."""
ACCEPTS_PER_SECOND_DEFAULT = 200
ACCEPTS_BURST_DEFAULT = 500
UNCONFIRMED_BYTES_MAX = 128 * 1024 * 1024
"""Publishes of the whole process that are not confirmed yet; a tenant may hold as much as is still free."""
REFUSED_SOCKET_MS_MIN = 1_000
REFUSED_SOCKET_MS_MAX = 30_000
"""A socket that cannot come in now is told a time between these two, drawn evenly."""
REFUSED_PUBLISH_MS_MIN = 500
REFUSED_PUBLISH_MS_MAX = 3_000
"""The same for any other work that is refused under load."""
SLOWEST_CLOSED_FRACTION = 0.01
"""Of all sockets, closed each second while memory is short: those that have not read for the longest."""
SLOWEST_BLOCKED_SECONDS_MIN = 1.0
"""Only a socket that has not read for so long is one of them."""
HELD_REPLAY_SECONDS = 0.5
"""How often replays that are held under load ask whether they may go on."""
DRAIN_WAVE_SECONDS = 0.05
"""The time between two waves of a drain."""
STREAM_RETRY_MS_MIN = 1_000
STREAM_RETRY_MS_MAX = 15_000
"""A drained SSE stream is asked to come back after a time between these two, or later where sockets are many."""
BYE_RETRY_MS_MIN = 200
"""The least that a drained WebSocket is asked to wait: the server has to start again."""
PINGS_PER_SECOND_MAX = 100
"""Pings and pongs of one socket; one that sends more is closed with 4008."""
REFUSED_PER_SECOND_MAX = 1_000
"""Requests of one socket that are refused, publishes aside; one that sends more is closed with 4008."""
SPAN_LINKS_MAX = 32
"""Contexts of messages that a span of their delivery links to; an attribute says how many there are."""
FETCH_AGAIN_SECONDS = 1.0
"""When a reader of a stream tries again whose messages could not be fetched."""
BEAT_MS_MAX = 5_000
"""What of the time since the last beat of housekeeping counts against sessions: the process slept, or stood still."""
