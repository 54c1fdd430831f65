"""The client's limits, each with its unit last."""

from __future__ import annotations

import msgspec

DEFAULT_URL = "http://127.0.0.1:8080"
DEFAULT_KEY_FILE = "pushq-data/admin.key"


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of one session; the defaults suit a server and a browser-sized consumer alike."""

    publish_window_messages: int = 1024
    """Unconfirmed messages before `publish` waits: the backpressure on a producer."""
    publish_frame_messages_max: int = 100
    publish_frame_bytes_max: int = 1024 * 1024
    publish_frames_in_flight_max: int = 8
    """While so many frames are unanswered only full frames are sent, so a busy producer's small publishes gather into
    large ones."""
    publish_timeout_s: float = 60.0
    publish_grace_s: float = 1.0
    """How long an answer may still be in transit after the `timeout` of a `publish`."""
    publish_apart_s: float = 0.1
    """Messages share a frame, with the earliest of their deadlines, if their deadlines are no further apart than
    this."""
    publish_retries_max: int = 8
    """How often one message is sent again after the server refused it temporarily (429, 503, 504)."""
    message_bytes_max: int = 3 * 1024 * 1024
    """The client refuses larger messages: a frame above the server's 4 MiB would close the session for every other
    message."""

    publish_queues_max: int = 10_000
    """Queues for which one client keeps numbers; those sequenced by arrival need none and make room for others."""
    clock_ahead_ms_max: int = 500
    """A stamp further ahead of this computer's time does not advance the client's clock: servers do not trust such
    stamps."""

    settle_frame_receipts_max: int = 1000
    settle_frames_in_flight_max: int = 32
    settle_timeout_s: float = 60.0

    subscription_credit: int = 100
    subscription_credit_max: int = 10_000
    """The client refuses a larger `credit`: over SSE and long-poll the server may not see it."""
    credit_return_fraction: float = 0.5
    """Credit that no receipt returns goes back in one frame once this fraction of it was consumed."""
    auto_inbox_factor: int = 10
    """With `ack="auto"` the server settles what it sends: with more than this many times the credit waiting, the client
    unsubscribes until its reader has caught up."""
    visibility_timeout_ms: int = 30_000
    """Used if neither the caller nor the server names the queue's visibility timeout."""
    handler_limit_s: float = 300.0
    lease_extension_fraction: float = 0.5

    run_concurrency: int = 10
    """Concurrent handlers of `run`, unless the caller names a number."""
    run_drain_s: float = 20.0
    """How long handlers may take to end when `run` stops, unless the caller names a time: within the 30 s that most
    systems leave between SIGTERM and SIGKILL."""
    run_give_back_s: float = 0.5
    """How often, during the drain, messages that the server still sends go back for other consumers."""
    retry_base_s: float = 1.0
    """How long a message waits after its handler raised, doubled with each attempt, if its queue has no backoff; 0: no
    wait."""
    retry_cap_s: float = 60.0
    reason_chars_max: int = 256
    """Length of a nack's reason: the server takes no longer one."""

    requests_in_progress_max: int = 10_000
    """Requests without a reply yet; a further one waits, within its timeout."""
    reply_credit: int = 1000
    reply_ttl_ms: int = 60_000
    """Of a reply queue that the client creates: messages that are not fetched expire after this time."""

    token_refresh_ahead_s: float = 60.0
    """A JWT is replaced so long before it expires, or after half of its remaining life, whichever is later."""
    token_retry_s: float = 1.0
    """How often, at most, the function that returns tokens is called."""

    open_timeout_s: float = 10.0
    open_patience_s: float = 0.0
    """How long to try while a server answers but asks to come back later, or (over a WebSocket) takes the connection
    and does not answer yet; if longer than `open_timeout_s`."""
    address_stagger_s: float = 0.5
    """If a name has several addresses, the next one is tried when one has not answered for so long."""
    address_timeout_s: float = 3.0
    """How long each address may take to answer the health check over HTTP."""
    close_timeout_s: float = 5.0
    drain_timeout_s: float = 15.0
    """After `bye` the server closes; if it does not, the client cuts the connection, which keeps the session's
    leases."""
    backoff_base_s: float = 0.5
    backoff_cap_s: float = 20.0
    asked_wait_cap_s: float = 120.0
    """The longest wait that a server or a proxy may ask for: if it asks for more, the client waits between half of this
    and all of it."""
    stable_after_s: float = 10.0
    """After a connection that lived this long, the next delay starts at the base again."""
    silence_grace_s: float = 5.0
    ping_ms: int = 25_000
    """Used until `connected` names the server's."""

    frame_bytes_max: int = 16 * 1024 * 1024
    poll_wait_ms: int = 20_000
    poll_messages_max: int = 1000
    poll_leave_s: float = 0.2
    """How long a closing client waits for the answer to its last poll, to give back the messages in it."""
    http_timeout_s: float = 30.0
    sse_silence_s: float = 35.0
    """A server comments every 15 s: two missed and 5 s of grace."""
