"""Every limit of the client, named once, with its unit last."""

from __future__ import annotations

import msgspec

DEFAULT_URL = "http://127.0.0.1:8080"
DEFAULT_KEY_FILE = "pushq-data/admin.key"


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of one session; the defaults suit a server and a browser-sized consumer alike."""

    publish_window_messages: int = 1024
    """Unconfirmed messages before `publish` waits: the back-pressure a producer feels."""
    publish_frame_messages_max: int = 100
    publish_frame_bytes_max: int = 1024 * 1024
    publish_frames_in_flight_max: int = 8
    """Beyond this only full frames leave, so a busy producer's small publishes gather into large ones."""
    publish_timeout_s: float = 60.0
    publish_grace_s: float = 1.0
    """How long an answer may be on its way when the time is over that `publish` was given."""
    publish_apart_s: float = 0.1
    """Messages share a frame, and the time of the first to end, when their times end so close to each other."""
    publish_retries_max: int = 8
    """How often one message is sent again after the server refused it for the moment (429, 503, 504)."""
    message_bytes_max: int = 3 * 1024 * 1024
    """Refused here: a frame above the server's 4 MiB would close the session for every other message."""

    publish_queues_max: int = 10_000
    """Queues whose numbers one client keeps; those sequenced by arrival need none and make room for others."""
    clock_ahead_ms_max: int = 500
    """A stamp further ahead of this computer's time does not move the client's clock: servers do not believe it."""

    settle_frame_receipts_max: int = 1000
    settle_frames_in_flight_max: int = 32
    settle_timeout_s: float = 60.0

    subscription_credit: int = 100
    subscription_credit_max: int = 10_000
    """A larger `credit` is refused here: over SSE and long-poll the server may not hear of it."""
    credit_return_fraction: float = 0.5
    """Credit that no receipt gives back is returned in one frame once this part of it was consumed."""
    auto_inbox_factor: int = 10
    """With `ack="auto"` the server settles what it sends: above this many times the credit the client unsubscribes
    until its reader has caught up."""
    visibility_timeout_ms: int = 30_000
    """Assumed where neither the caller nor the server names the queue's time-out."""
    handler_limit_s: float = 300.0
    lease_extension_fraction: float = 0.5

    run_concurrency: int = 10
    """Handlers side by side, where `run` is not told how many."""
    run_drain_s: float = 20.0
    """How long they have to end when `run` stops, where it is not told: within the 30 s that most systems leave between
    SIGTERM and SIGKILL."""
    run_give_back_s: float = 0.5
    """How often what the server sends all the same goes back meanwhile, for others to have it."""
    retry_base_s: float = 1.0
    """How long a message waits whose handler raised, doubled with each attempt, where its queue has no back-off; 0: not
    at all."""
    retry_cap_s: float = 60.0
    reason_chars_max: int = 256
    """Of a nack: the server takes no longer one."""

    requests_in_progress_max: int = 10_000
    """Requests without a reply yet; the next one waits, within its time-out."""
    reply_credit: int = 1000
    reply_ttl_ms: int = 60_000
    """Of a reply queue that the client makes: what nobody fetches is gone after this time."""

    token_refresh_ahead_s: float = 60.0
    """A JWT is replaced so long before it ends, or when half its life is over, whichever is later."""
    token_retry_s: float = 1.0
    """How often at most the function is asked that gives tokens."""

    open_timeout_s: float = 10.0
    open_patience_s: float = 0.0
    """How long to try at a server that is there, and asks to come back later or (over a WebSocket) takes the connection
    and does not answer yet; where that is more than the above."""
    address_stagger_s: float = 0.5
    """Of a name with several addresses the next one is tried when one has not answered for so long."""
    address_timeout_s: float = 3.0
    """How long each of them has to tell over HTTP that it is well."""
    close_timeout_s: float = 5.0
    drain_timeout_s: float = 15.0
    """After `bye` the server closes; one that does not is cut, which keeps the session's leases."""
    backoff_base_s: float = 0.5
    backoff_cap_s: float = 20.0
    asked_wait_cap_s: float = 120.0
    """The longest wait that a server or a proxy may ask for: of a longer one, between half of this and all is kept."""
    stable_after_s: float = 10.0
    """A connection that lived this long was a good one: the next delay starts at the base again."""
    silence_grace_s: float = 5.0
    ping_ms: int = 25_000
    """Assumed until `connected` names the server's."""

    frame_bytes_max: int = 16 * 1024 * 1024
    poll_wait_ms: int = 20_000
    poll_messages_max: int = 1000
    poll_leave_s: float = 0.2
    """A client that closes waits so long for the answer to its last poll, to give back what that brings."""
    http_timeout_s: float = 30.0
    sse_silence_s: float = 35.0
    """A server comments every 15 s: two missed and 5 s of grace."""
