"""Bounds of the gateway, each with its unit last. Those that an operator may change are in `settings.Limits`."""

from __future__ import annotations

from typing import Final

IDENTITIES_MAX: Final = 10_000
"""Tokens whose principal is cached; any other costs a look-up, or a verification, more."""
ACCESS_DECISIONS_MAX: Final = 1_000
"""Cached decisions whether a key may do something to a queue, per key."""
SPLIT_CLUSTERS_MAX: Final = 16
"""Clusters that one queue is split over."""
TICKETS_MAX: Final = 100_000
"""Tickets waiting to be used; a tenant may have as many as are still free, beyond that `overloaded`."""
TICKET_SECONDS: Final = 30
TEMPORARY_KEY_SECONDS: Final = 3_600
"""Lifetime of a key that is in memory only, such as the demo page's; at most two of a name exist at a time."""

REMEMBERED_HEAD_BYTES_MAX: Final = 4 * 1024
"""Size of a request's head that its connection caches; there are many idle connections, and a head may have 64 KiB."""
JOINED_BYTES_MAX: Final = 64 * 1024
"""Body of an answer up to which it is copied behind its head, so that both are one write."""
GARBAGE_OBJECTS_MIN: Final = 10_000
"""Net allocations of objects before the youngest ones are searched for garbage cycles."""
TENANTS_REMEMBERED_MAX: Final = 10_000
"""Tenants whose quotas are cached as rules."""
TOKEN_BYTES_MAX: Final = 8 * 1024
"""Size of a credential; a longer one is refused before it is parsed."""
ISSUERS_MAX: Final = 1_000
"""Entries of `auth.jwt.issuers`."""
ISSUER_CHARS_MAX: Final = 256
"""The name of an issuer."""
SUBJECT_CHARS_MAX: Final = 256
"""The claim `sub` of a token."""
SCOPE_CHARS_MAX: Final = 6 * 1024
"""The claim `scope` of a token; it may have as many scopes as a key."""
KEY_ID_CHARS_MAX: Final = 256
"""The `kid` of a key in a key set."""
JWT_LEEWAY_SECONDS_DEFAULT: Final = 20
"""With `KEY_CHECK_SECONDS` and a beat of housekeeping, live sessions end less than 30 s after their token."""
JWT_LEEWAY_SECONDS_MAX: Final = 60
"""The largest `auth.jwt.leeway_s`."""
JWT_KEY_DAYS_DEFAULT: Final = 90
JWT_KEY_DAYS_MAX: Final = 3_650
"""The largest `auth.jwt.key_days_max`."""
JWT_SECRET_BYTES_MIN: Final = 32
"""The shortest secret for HS256."""
RSA_BITS_MIN: Final = 2_048
"""The shortest RSA key of an issuer."""
RSA_BITS_MAX: Final = 8_192
"""The longest RSA key of an issuer."""
JWKS_BYTES_MAX: Final = 256 * 1024
"""Size of a key set."""
JWKS_KEYS_MAX: Final = 100
"""Keys of a key set."""
JWKS_MAX_AGE_SECONDS_DEFAULT: Final = 300
JWKS_MAX_AGE_SECONDS_MIN: Final = 10
"""The smallest `auth.jwt.jwks_max_age_s`."""
JWKS_MAX_AGE_SECONDS_MAX: Final = 86_400
"""The largest `auth.jwt.jwks_max_age_s`."""
JWKS_REFRESH_SECONDS_MIN: Final = 10.0
"""Minimum time between reads of a key set, also if a token names an unknown `kid`."""
JWKS_STALE_SECONDS_MAX: Final = 86_400.0
"""How long keys that were read stay valid while their server does not answer."""
JWKS_FETCH_SECONDS_MAX: Final = 5.0
"""How long a key server may take to answer."""
JWKS_FETCHES_AT_ONCE_MAX: Final = 8
"""Key sets fetched at the same time."""
KEY_IDS_MISSED_MAX: Final = 100
"""Ids of unknown keys that are remembered, per issuer."""
JWKS_START_SECONDS_MAX: Final = 3.0
"""How long a start waits for the key sets; then it goes on without."""

BEGUN_LOOK_SECONDS: Final = 1.0
"""How often it is checked whether the credential that started a redrive was withdrawn."""
KEY_CARE_SECONDS: Final = 60.0
"""How often the last use of keys is stored, in one commit, and expired keys are removed."""
KEYS_USED_PER_COMMIT_MAX: Final = 5_000
"""Keys whose last use one such commit writes; the others follow in the next."""
EXPIRED_KEY_KEPT_MS: Final = 30 * 24 * 3600 * 1000
"""How long an expired key stays listed before it is removed."""
EXPIRED_KEYS_PER_LOOK_MAX: Final = 100
"""Expired keys removed per minute."""

SCOPES_PER_KEY_MAX: Final = 100
CONFIG_BYTES_MAX: Final = 64 * 1024
"""Size of a queue's config in a request's body."""
FIELDS_DEPTH_MAX: Final = 16
"""Nesting depth of a request's fields, except bodies of messages."""
NAME_CHARS_MAX: Final = 128
ROTATE_GRACE_MS_MAX: Final = 30 * 24 * 3600 * 1000
QUOTA_MAX: Final = 1 << 50
"""The largest number in a tenant's quotas."""
STORED_LOOK_SECONDS: Final = 1.0
"""How often stored bytes are summed up, for quotas of `stored_bytes`."""
STORED_QUEUES_PER_TURN: Final = 1_000
"""Queues summed up per turn of the event loop."""
TAGS_MAX: Final = 64
TAG_BYTES_MAX: Final = 16 * 1024

HORIZON_MS_MAX: Final = 36_525 * 24 * 3600 * 1000
"""The longest delay, TTL and retention: a hundred years. For none there is `null`; more is a mistake of units."""
PRODUCER_SEQ_MAX: Final = (1 << 63) - 1
"""The largest `producer_seq` of a message."""
ATTEMPTS_MAX: Final = 10_000
"""The largest `max_attempts` of a queue; one without limit has `dead_letter_queue: null`."""
SORT_WINDOW_MS_MAX: Final = 3600 * 1000
"""The longest `sort_window_ms` of a queue: any message of a sorted queue may wait that long."""
SORT_HELD_MESSAGES_LIMIT: Final = 1_000_000
"""The largest `sort_held_messages_max` of a queue."""
KEY_RUN_LIMIT: Final = 1_000
"""The largest `key_run_max` of a queue."""
DEDUPE_WINDOW_MS_MIN: Final = 100
"""The shortest `dedupe_window_ms` of a queue: ids are forgotten a sixteenth of the window at a time."""
DEDUPE_WINDOW_MS_MAX: Final = 14 * 24 * 3600 * 1000
"""The longest `dedupe_window_ms` of a queue."""
QUEUE_MESSAGES_LIMIT: Final = 1_000_000_000_000
"""The largest `max_messages` of a queue."""
QUEUE_BYTES_LIMIT: Final = 1 << 50
"""The largest `max_bytes` and `retention_bytes` of a queue."""
REDRIVE_PER_SECOND_MAX: Final = 100_000
"""The largest `rate_per_s` of a redrive; without one its rate is unlimited."""
REDRIVE_IDS_MAX: Final = 10_000
"""Ids in the filter of a redrive."""
AUTO_CREATE_ENTRIES_MAX: Final = 100
"""Entries of `queues.auto_create`; a name is compared with each until one matches."""

REPLIES_RUNS_MAX: Final = 20_000
"""Runs of messages in cached replies to idempotency keys, nearly always one per reply; the least recently used replies
are evicted."""
REPLIES_LINGER_SECONDS: Final = 0.1
"""How long a reply waits for others before it is written to Redis: a round trip costs as much as a few hundred
messages, and until then the partition answers a repeat at another gateway."""
REPLIES_PER_TRIP_MAX: Final = 512
"""Replies asked for or written in one round trip to Redis."""
REPLIES_ASK_SECONDS: Final = 0.02
"""How long the partition has to answer a request under an idempotency key before Redis is asked, too."""
REPLIES_SECONDS_MAX: Final = 0.25
"""How long a round trip to Redis for replies may take."""
REPLIES_WAITING_MAX: Final = 10_000
"""Replies waiting to be written to Redis, and as many to be asked for; any more are dropped."""

PAGE_ITEMS_DEFAULT: Final = 100
PAGE_ITEMS_MAX: Final = 1_000
RANGE_MESSAGES_MAX: Final = 5_000
"""Messages of one read of a partition's range; also the default of its `limit`."""
RANGE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes after which a read of a range takes no further chunks of messages."""
RECEIVE_MESSAGES_DEFAULT: Final = 10

QUEUES_LABELLED_MAX: Final = 200
"""Queues with metric series of their own, the first ones of each tenant; the others are summed up as `other`."""
KEYS_LABELLED_MAX: Final = 200
"""API keys whose expiry is a metric series: those that expire first."""
GROUPS_LABELLED_MAX: Final = 500
"""Consumer groups with a metric series of their own, those of the first streams of each tenant; the others are summed
up as `other`."""

DATA_KEY_BLOCKS_MAX: Final = 1 << 31
"""Blocks that one data key seals: the chance of a repeated random nonce stays below one in 10^10."""
DATA_KEY_BLOCKS_RESERVED: Final = 1 << 20
"""Blocks by which a data key's stored count is advanced at a time; a start counts all of them as used."""
DATA_KEY_CHECK_SECONDS: Final = 600
"""How often the age of data keys is checked."""
DATA_KEY_RETRY_SECONDS: Final = 1.0
"""The pause before the master key is asked again after it did not answer."""
DATA_KEYS_PER_REQUEST_MAX: Final = 100
"""Data keys wrapped or unwrapped by one request to the master key, and stored in one commit."""
DATA_KEY_DAYS_MAX: Final = 3_650
"""The largest `encryption.data_key_days`."""
BODY_DEPTH_MAX: Final = 32
"""Nesting depth of lists and objects in a body that is a value, not bytes."""
MASTER_KEYS_MAX: Final = 16
"""Master keys in a file: one wraps, the others only unwrap."""
MASTER_FILE_SECONDS: Final = 2.0
"""How often the file of the master keys is checked for changes."""
MASTER_ANSWER_BYTES_MAX: Final = 1024 * 1024
"""Size of the answer of a master key's command."""
MASTER_TIMEOUT_MS_MAX: Final = 60_000
"""The largest `encryption.command_timeout_ms`."""
ROTATIONS_REMEMBERED_MAX: Final = 16
"""Rotations of keys whose status can be read."""
ROTATION_QUEUES_MAX: Final = 1_000
"""Queues that one rotation may name."""

HEADERS_MAX: Final = 100
HEADERS_BYTES_MAX: Final = 64 * 1024
REQUEST_HEAD_SECONDS_MAX: Final = 5
PIECES_PER_TURN_MAX: Final = 64
"""Pieces of one HTTP connection's input, split after each empty line, that are parsed per turn of the event loop."""
REQUEST_BODY_SECONDS_MAX: Final = 120
LATE_CHANGES_PER_CALLER_MAX: Final = 100
"""Changes of one caller that continue after it was answered at their deadline. At this number no further change with a
deadline begins."""
LEFTOVER_BYTES_DEFAULT: Final = 64 * 1024 * 1024
LEFTOVER_SECONDS_DEFAULT: Final = 30
LEFTOVERS_PER_TURN_MAX: Final = 4
"""Connections whose answered bodies are read further, per turn of the event loop."""
TLS_HANDSHAKE_SECONDS_MAX: Final = 10.0
"""How long a TLS handshake may take before the connection is closed."""
CERTIFICATE_LOOK_SECONDS: Final = 2.0
"""How often the certificate files are checked for changes."""
CERTIFICATE_WARN_SECONDS: Final = 14 * 24 * 3600
"""Remaining lifetime of a certificate below which the log has a warning once a day."""
PROXY_HEADER_SECONDS_MAX: Final = 5.0
"""How long a trusted proxy may take to send its PROXY header."""
PROXY_HEADER_BYTES_MAX: Final = 4096
"""Size of a PROXY header with its extensions."""
KEEP_ALIVE_SECONDS: Final = 75
"""Longer than the idle timeout of common load balancers, so that they, not we, close an idle connection."""
LISTEN_BACKLOG: Final = 4_096
FILES_RESERVED: Final = 200
"""Open files kept for the database, logs and plain HTTP requests; the rest may be sockets of consumers."""

FAREWELL_SECONDS_MAX: Final = 3.0
"""How much longer than `drain_window_s` a drain may take to close all sockets before the rest is cut."""
ANSWERS_SECONDS_MAX: Final = 1
"""How long requests in progress may take to finish after the sockets were closed."""

USAGE_ROWS_PER_MINUTE_MAX: Final = 10_000
"""Different rows of one minute; any more are counted as `other`."""
USAGE_ROWS_PER_FREE_MAX: Final = 9
"""A tenant may have this many times the rows of a minute that are still free, which alone is nine tenths of all; any
more are counted as its `other`."""
REFUSED_ACTS_PER_MINUTE_MAX: Final = 60
"""Refused acts of a principal that the audit records per minute; any more are only counted in the usage minutes."""
REFUSED_PRINCIPALS_MAX: Final = 10_000
"""Principals whose refused acts the audit records per minute; a tenant may have as many as are free, alone half."""
USAGE_AUDIT_ROWS_KEPT: Final = 100_000
"""Acts that `/v1/audit` can list. Older ones are in the files."""
USAGE_UNWRITTEN_ROWS_MAX: Final = 100_000
"""Rows of minutes kept in memory while they cannot be written; the oldest are dropped first, and counted."""
USAGE_CLOSE_SECONDS_MAX: Final = 2.0
"""How long a stop waits for the last files. What is not written by then stays in the store."""
USAGE_LEAD_SECONDS_MAX: Final = 30.0
"""How long a backend that leads a shard again waits until its earlier files of the shard are written."""
USAGE_AUDIT_LOOKS_MAX: Final = 10_000
"""Acts that one request to `/v1/audit` reads before it answers with a cursor."""
USAGE_DAYS_PER_REQUEST_MAX: Final = 366
"""Days that one request to `/v1/usage` sums up."""
USAGE_LIVE_BYTES_MAX: Final = 1024 * 1024
"""Size of what the job `live_usage` has written of one tenant's last hour."""
USAGE_LIVE_FILES_MAX: Final = 16
"""Number of files of one tenant's last hour."""
USAGE_LIVE_POINTER_BYTES_MAX: Final = 4_096
"""Size of the file that names the job's current folder."""
USAGE_ROOM_SECONDS_MAX: Final = 30.0
"""How long a round waits for the check whether the folder has room; if the disk hangs, rows wait for the next round."""
USAGE_LIVE_READ_SECONDS_MAX: Final = 2.0
"""How long an answer waits for the job's folder."""
USAGE_LIVE_STALE_MS: Final = 60_000
"""Age of a job's last sign of life from which the job counts as stopped."""
USAGE_LIVE_TENANTS_KEPT: Final = 100
"""Tenants whose last hour is cached until the job has written another."""

CATALOGUE_FRESH_MS: Final = 5_000
"""Maximum age of metadata served while a remote metadata service is heard, also of the knowledge that a name is
absent."""
CATALOGUE_QUEUES_MAX: Final = 100_000
"""Queues of a remote metadata service that are cached."""
CATALOGUE_KEYS_MAX: Final = 100_000
"""API keys of a remote metadata service that are cached."""
CATALOGUE_TENANTS_MAX: Final = 10_000
"""Tenants of a remote metadata service that are cached."""
CATALOGUE_ABSENT_MAX: Final = 10_000
"""Names cached as absent in a remote metadata service, of each kind."""
CATALOGUE_ASKS_MAX: Final = 7
"""How often a look-up asks, if its answers are overtaken by changes."""
CATALOGUE_PAUSE_SECONDS: Final = 0.01
"""The pause before a look-up asks a second time; it doubles each time."""
CATALOGUE_LIST_MS: Final = 1_000
"""How long a list of a remote metadata service is cached."""
CATALOGUE_FLIGHTS_MAX: Final = 1_000
"""Look-ups of one kind in progress at once."""
CATALOGUE_WAIT_SECONDS: Final = 2.0
"""How long a request waits for a look-up."""
CATALOGUE_WRITE_SECONDS: Final = 6.0
"""How long a request waits for a change of remote metadata, including the wait for other changes."""
CATALOGUE_REWATCH_SECONDS: Final = 0.05
"""The pause before a lost watch is resumed."""
OVERLOAD_LOOK_SECONDS: Final = 0.1
"""How often the publishes' wait for the disk is measured; every fifth time memory use, too."""
SETTLING_BODY_BYTES_SURE: Final = 1024 * 1024
"""Body of an ack, nack or extend up to which it is always read, however many publishes wait."""
UNCONFIRMED_MEMORY_FRACTION: Final = 0.125
"""Part of the process's memory that unconfirmed publishes may take, if that is less than their own bound."""
CONNECTIONS_PER_SOCKET: Final = 10
"""New connections of any kind admitted for each WebSocket or SSE stream that `limits.accepts_per_s` admits."""
ADDRESS_TIMES_FREE: Final = 9
"""An address may have this many times the connections that are still free: alone nine tenths of all, because it may be
a load balancer's."""
UNTOLD_HANDSHAKES_MAX: Final = 128
"""TLS handshakes in progress of connections whose address has no room left, which are told so after the handshake; at
most half of them of one address. Others are cut."""
HTTP_CONNECTIONS_MAX: Final = 10_000
"""Connections beside those of `limits.connections_max`: plain HTTP, and those without a request yet."""
READER_BYTES_MIN: Final = 16 * 1024
"""Bytes of an answer that a client must read in each 10 s; one that reads less is cut."""
CLUSTER_STALE_SECONDS_MAX: Final = 5.0
"""Maximum age of the state in `/v1/cluster`; beyond it the answer is 503."""
RECOVERY_BATCH_BYTES: Final = 4 * 1024 * 1024
"""Quarantined messages read from a backend and published again in one batch."""
RECOVERY_SECONDS_MAX: Final = 10.0
"""How long one request to publish quarantined messages runs; the rest is left for the next request."""
RECOVERY_BEGUN_MAX: Final = 64
"""Chunks in quarantine marked as begun before they are published, one after the other."""
RECOVERY_SHOWN_MAX: Final = 100
"""Messages shown of a piece in quarantine."""
PROVISIONER_OUTPUT_BYTES_MAX: Final = 4096
"""Bytes at the end of a provisioner program's output that are logged."""
PROVISIONER_END_SECONDS: Final = 5.0
"""How long a provisioner program may take to end after SIGTERM before it is killed."""
CLUSTER_RETRY_SECONDS: Final = 1.0
"""The pause before a gateway connects to the cluster's coordinator again."""
CONSOLE_LISTS_MAX: Final = 64
"""Tenants whose list of queues is cached for the console's pages."""
CONSOLE_LIST_SLICE: Final = 100
"""Queues that the console reads per turn of the event loop."""
CONSOLE_LIST_SHARE_MAX: Final = 0.01
"""Share of a core that refreshing one tenant's list of queues may cost while it is viewed."""
CONSOLE_LIST_WAIT_SECONDS: Final = 0.05
"""CPU time from which a list of queues is refreshed in the background while the cached one is shown."""
CONSOLE_LIST_KNOWN_SECONDS: Final = 90.0
"""Maximum age of a cached list of queues; a request for an older one waits for the refresh."""
CLUSTER_ENTRIES_MAX: Final = 64
"""Entries of `store.clusters`."""
