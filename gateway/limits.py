"""Bounds of the gateway, each with its unit last. Those an operator may move stand in `config.Limits` instead."""

from __future__ import annotations

from typing import Final

IDENTITIES_MAX: Final = 10_000
"""Tokens whose principal is remembered; an unknown one costs a hash and a look-up more."""
ACCESS_DECISIONS_MAX: Final = 1_000
"""Remembered answers to "may this key do that to this queue", per key."""
SPLIT_CLUSTERS_MAX: Final = 16
"""Clusters that one queue is split over."""
TICKETS_MAX: Final = 100_000
"""Tickets that wait to be used; a tenant may have as many as are still free, above it `overloaded`."""
TICKET_SECONDS: Final = 30
TEMPORARY_KEY_SECONDS: Final = 3_600
"""The life of a key that is in memory only, such as the demo page's; at most two of a name live at a time."""

REMEMBERED_HEAD_BYTES_MAX: Final = 4 * 1024
"""The head of a request that its connection remembers; idle connections are many, and a head may have 64 KiB."""
JOINED_BYTES_MAX: Final = 64 * 1024
"""The body of an answer that is copied behind its head, so that both are one piece."""
GARBAGE_OBJECTS_MIN: Final = 10_000
"""So many objects more than were let go are made before some are looked at for cycles that nobody holds."""
TENANTS_REMEMBERED_MAX: Final = 10_000
"""Tenants whose quotas are remembered as rules."""
TOKEN_BYTES_MAX: Final = 8 * 1024
"""A credential; a longer one is refused before anybody parses it."""
ISSUERS_MAX: Final = 1_000
"""Entries of `auth.jwt.issuers`."""
ISSUER_CHARS_MAX: Final = 256
"""The name of an issuer."""
SUBJECT_CHARS_MAX: Final = 256
"""The claim `sub` of a token."""
SCOPE_CHARS_MAX: Final = 6 * 1024
"""The claim `scope` of a token; the scopes in it are at most as many as those of a key."""
KEY_ID_CHARS_MAX: Final = 256
"""The `kid` of a key in a key set."""
JWT_LEEWAY_SECONDS_DEFAULT: Final = 30
JWT_LEEWAY_SECONDS_MAX: Final = 300
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
"""A key set."""
JWKS_KEYS_MAX: Final = 100
"""Keys of a key set."""
JWKS_MAX_AGE_SECONDS_DEFAULT: Final = 300
JWKS_MAX_AGE_SECONDS_MIN: Final = 10
"""The smallest `auth.jwt.jwks_max_age_s`."""
JWKS_MAX_AGE_SECONDS_MAX: Final = 86_400
"""The largest `auth.jwt.jwks_max_age_s`."""
JWKS_REFRESH_SECONDS_MIN: Final = 10.0
"""An unknown `kid` has the set read anew, at most this often."""
JWKS_STALE_SECONDS_MAX: Final = 86_400.0
"""Keys that were read once are good for so long while their server is away."""
JWKS_FETCH_SECONDS_MAX: Final = 5.0
"""How long a server of keys may take to answer."""
JWKS_FETCHES_AT_ONCE_MAX: Final = 8
"""Key sets that are fetched at a time."""
KEY_IDS_MISSED_MAX: Final = 100
"""Names of unknown keys that are remembered, of one issuer."""
JWKS_START_SECONDS_MAX: Final = 3.0
"""How long a start waits for the key sets; without one it goes on."""

BEGUN_LOOK_SECONDS: Final = 1.0
"""How often it is asked whether the credential that a redrive was begun with was withdrawn."""
KEY_CARE_SECONDS: Final = 60.0
"""How often the use of keys is written down, in one commit, and expired ones are looked for."""
KEYS_USED_PER_COMMIT_MAX: Final = 5_000
"""Keys whose last use one such commit writes; the others follow in the next."""
EXPIRED_KEY_KEPT_MS: Final = 30 * 24 * 3600 * 1000
"""How long an expired key stays listed before it is removed."""
EXPIRED_KEYS_PER_LOOK_MAX: Final = 100
"""Expired keys that are removed in a minute."""

SCOPES_PER_KEY_MAX: Final = 100
CONFIG_BYTES_MAX: Final = 64 * 1024
"""The config of a queue, as a request's body."""
FIELDS_DEPTH_MAX: Final = 16
"""How deep the fields of a request may be nested, bodies of messages aside."""
NAME_CHARS_MAX: Final = 128
ROTATE_GRACE_MS_MAX: Final = 30 * 24 * 3600 * 1000
QUOTA_MAX: Final = 1 << 50
"""The largest number in a tenant's quotas."""
STORED_LOOK_SECONDS: Final = 1.0
"""How often what tenants hold is added up, for quotas of `stored_bytes`."""
STORED_QUEUES_PER_TURN: Final = 1_000
"""Queues that are added up in a turn of the loop."""
TAGS_MAX: Final = 64
TAG_BYTES_MAX: Final = 16 * 1024

HORIZON_MS_MAX: Final = 36_525 * 24 * 3600 * 1000
"""A hundred years: the longest delay, time to live and retention. What is later is `null`, or a mistake of units."""
PRODUCER_SEQ_MAX: Final = (1 << 63) - 1
"""The largest `producer_seq` of a message."""
ATTEMPTS_MAX: Final = 10_000
"""The largest `max_attempts` of a queue; one without limit has `dead_letter_queue: null`."""
SORT_WINDOW_MS_MAX: Final = 3600 * 1000
"""The longest `sort_window_ms` of a queue: every message of a sorted queue may wait so long."""
SORT_HELD_MESSAGES_LIMIT: Final = 1_000_000
"""The most that a queue's `sort_held_messages_max` may allow."""
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
"""The largest `rate_per_s` of a redrive; without one it goes as fast as it can."""
REDRIVE_IDS_MAX: Final = 10_000
"""Ids in the filter of a redrive."""
AUTO_CREATE_ENTRIES_MAX: Final = 100
"""Entries of `queues.auto_create`; a name is held against each until one fits."""

REPLIES_RUNS_MAX: Final = 20_000
"""Runs of messages in replies that are kept by their idempotency keys, nearly always one a reply; the least recently
used make room."""
REPLIES_LINGER_SECONDS: Final = 0.1
"""How long a reply waits for others before it is written to Redis: a round trip costs as much as some hundred messages,
and until then a repeat at another gateway is answered by the partition."""
REPLIES_PER_TRIP_MAX: Final = 512
"""Replies asked for or written in one round trip to Redis."""
REPLIES_ASK_SECONDS: Final = 0.02
"""So long the partition has to answer a request under an idempotency key, before Redis is asked as well."""
REPLIES_SECONDS_MAX: Final = 0.25
"""How long a round trip to Redis for replies may take."""
REPLIES_WAITING_MAX: Final = 10_000
"""Replies that wait to be written to Redis or asked for; what comes more is not."""

PAGE_ITEMS_DEFAULT: Final = 100
PAGE_ITEMS_MAX: Final = 1_000
RANGE_MESSAGES_MAX: Final = 5_000
"""Messages of one read of a partition's range; also what it takes without a `limit`."""
RANGE_BYTES_MAX: Final = 4 * 1024 * 1024
"""A read of a range takes no more chunks of messages after so many bytes."""
RECEIVE_MESSAGES_DEFAULT: Final = 10

QUEUES_LABELLED_MAX: Final = 200
"""Queues with metric series of their own, the first ones of each tenant; the others are added up under `other`."""
KEYS_LABELLED_MAX: Final = 200
"""API keys whose end is a metric series: those that end first."""
GROUPS_LABELLED_MAX: Final = 500
"""Consumer groups with a metric series of their own, those of the first streams of each tenant; the others are added up
under `other`."""

DATA_KEY_BLOCKS_MAX: Final = 1 << 31
"""Blocks that one data key seals: a repeated random nonce stays less likely than one in 10^10."""
DATA_KEY_BLOCKS_RESERVED: Final = 1 << 20
"""How often a data key's count of blocks is written down: a start counts as many as used."""
DATA_KEY_CHECK_SECONDS: Final = 600
"""How often data keys are looked at for their age."""
DATA_KEY_RETRY_SECONDS: Final = 1.0
"""How soon the master key is asked again after it did not answer."""
DATA_KEYS_PER_REQUEST_MAX: Final = 100
"""Data keys that are wrapped or unwrapped with one request to the master key, and stored with one commit."""
DATA_KEY_DAYS_MAX: Final = 3_650
"""The largest `encryption.data_key_days`."""
BODY_DEPTH_MAX: Final = 32
"""Levels of lists and objects within each other in a body that is a value, not bytes."""
MASTER_KEYS_MAX: Final = 16
"""Master keys in a file: one wraps, the others only unwrap."""
MASTER_FILE_SECONDS: Final = 2.0
"""How often the file of the master keys is looked at for new ones."""
MASTER_ANSWER_BYTES_MAX: Final = 1024 * 1024
"""What the command of a master key may answer."""
MASTER_TIMEOUT_MS_MAX: Final = 60_000
"""The largest `encryption.command_timeout_ms`."""
ROTATIONS_REMEMBERED_MAX: Final = 16
"""Rotations of keys that can still be asked about."""
ROTATION_QUEUES_MAX: Final = 1_000
"""Queues that one rotation may name."""

HEADERS_MAX: Final = 100
HEADERS_BYTES_MAX: Final = 64 * 1024
REQUEST_HEAD_SECONDS_MAX: Final = 5
PIECES_PER_TURN_MAX: Final = 64
"""Pieces of what one HTTP connection sent, cut behind each empty line, that are parsed in a turn of the loop."""
REQUEST_BODY_SECONDS_MAX: Final = 120
LATE_CHANGES_PER_CALLER_MAX: Final = 100
"""Changes of one caller that go on though it was answered when their time was over. No other with one begins then."""
LEFTOVER_BYTES_DEFAULT: Final = 64 * 1024 * 1024
LEFTOVER_SECONDS_DEFAULT: Final = 30
LEFTOVERS_PER_TURN_MAX: Final = 4
"""Connections that are read on in a turn of the loop while they send bodies that were answered."""
TLS_HANDSHAKE_SECONDS_MAX: Final = 10.0
"""A peer that connects and does not greet holds a socket no longer."""
CERTIFICATE_LOOK_SECONDS: Final = 2.0
"""How often the files of the certificate are looked at."""
CERTIFICATE_WARN_SECONDS: Final = 14 * 24 * 3600
"""A certificate that ends sooner is told in the log, once a day."""
PROXY_HEADER_SECONDS_MAX: Final = 5.0
"""How long a trusted proxy may take to say whom it speaks for."""
PROXY_HEADER_BYTES_MAX: Final = 4096
"""A PROXY header with its extensions."""
KEEP_ALIVE_SECONDS: Final = 75
"""Longer than the idle time-out of common balancers, so that they, not we, close an idle connection."""
LISTEN_BACKLOG: Final = 4_096
FILES_RESERVED: Final = 200
"""Open files kept for the database, logs and plain HTTP requests; the rest may be sockets of consumers."""

FAREWELL_SECONDS_MAX: Final = 3.0
"""How much longer than `drain_window_s` the farewells of a drain may take before the rest is cut."""
ANSWERS_SECONDS_MAX: Final = 1
"""What requests in progress get to finish after the farewells."""

USAGE_ROWS_PER_MINUTE_MAX: Final = 10_000
"""Different rows of one minute; what is more is counted under `other`."""
USAGE_ROWS_PER_FREE_MAX: Final = 9
"""So many times the rows that are still free in a minute a tenant may have, alone nine tenths of all; what is more of
it is counted under its name and `other`."""
REFUSED_ACTS_PER_MINUTE_MAX: Final = 60
"""Refused acts of a principal that the audit has of each minute; what is more is counted among the minutes."""
REFUSED_PRINCIPALS_MAX: Final = 10_000
"""Principals whose refused acts the audit has of one minute; a tenant may have as many as are free, alone half."""
USAGE_AUDIT_ROWS_KEPT: Final = 100_000
"""Acts that `/v1/audit` can list. Older ones are in the files."""
USAGE_UNWRITTEN_ROWS_MAX: Final = 100_000
"""Rows of minutes that wait in memory while they cannot be written; the oldest go first, and are counted."""
USAGE_CLOSE_SECONDS_MAX: Final = 2.0
"""How long a stop waits for the last files. What is not in one by then stays in the store."""
USAGE_LEAD_SECONDS_MAX: Final = 30.0
"""How long a backend that leads a shard again waits until what it began to write of it before is written."""
USAGE_AUDIT_LOOKS_MAX: Final = 10_000
"""Acts that one request to `/v1/audit` looks at before it answers with a cursor."""
USAGE_DAYS_PER_REQUEST_MAX: Final = 366
"""Days that one request to `/v1/usage` adds up."""
USAGE_LIVE_BYTES_MAX: Final = 1024 * 1024
"""What the job `live_usage` may have written of one tenant's last hour."""
USAGE_LIVE_FILES_MAX: Final = 16
"""In so many files."""
USAGE_LIVE_POINTER_BYTES_MAX: Final = 4_096
"""The file that says which of the job's folders counts."""
USAGE_ROOM_SECONDS_MAX: Final = 30.0
"""How long a turn waits to hear whether the folder has room; on a disk that hangs, rows wait for the next turn."""
USAGE_LIVE_READ_SECONDS_MAX: Final = 2.0
"""How long an answer waits for the job's folder."""
USAGE_LIVE_STALE_MS: Final = 60_000
"""A job that has said nothing for so long is taken for stopped."""
USAGE_LIVE_TENANTS_KEPT: Final = 100
"""Tenants whose last hour is remembered until the job has written another."""

CATALOGUE_FRESH_MS: Final = 5_000
"""How old metadata may be that is served while a remote metadata service is heard; what is absent is known so long."""
CATALOGUE_QUEUES_MAX: Final = 100_000
"""Queues of a remote metadata service that are remembered."""
CATALOGUE_KEYS_MAX: Final = 100_000
"""API keys of a remote metadata service that are remembered."""
CATALOGUE_TENANTS_MAX: Final = 10_000
"""Tenants of a remote metadata service that are remembered."""
CATALOGUE_ABSENT_MAX: Final = 10_000
"""Names that a remote metadata service does not have and that are remembered, of each kind."""
CATALOGUE_ASKS_MAX: Final = 7
"""How often a look-up asks whose answers are overtaken by changes."""
CATALOGUE_PAUSE_SECONDS: Final = 0.01
"""The pause before it asks a second time; it doubles with each."""
CATALOGUE_LIST_MS: Final = 1_000
"""How long a list of a remote metadata service serves the request that asked for it."""
CATALOGUE_FLIGHTS_MAX: Final = 1_000
"""Look-ups of one kind under way at once."""
CATALOGUE_WAIT_SECONDS: Final = 2.0
"""How long a request waits for a look-up."""
CATALOGUE_WRITE_SECONDS: Final = 6.0
"""How long a request waits for a change of remote metadata, a place among the other changes included."""
CATALOGUE_REWATCH_SECONDS: Final = 0.05
"""The pause before a watch that was lost is taken up again."""
OVERLOAD_LOOK_SECONDS: Final = 0.1
"""How often it is asked how long publishes wait; every fifth time also how much memory is used."""
SETTLING_BODY_BYTES_SURE: Final = 1024 * 1024
"""The body of an ack, nack or extend up to which it is read however many publishes wait."""
UNCONFIRMED_MEMORY_FRACTION: Final = 0.125
"""The part of the process's memory that unconfirmed publishes may take, where that is less than their own bound."""
CONNECTIONS_PER_SOCKET: Final = 10
"""New connections of any kind that may come for each WebSocket or SSE stream that `limits.accepts_per_s` lets in."""
ADDRESS_TIMES_FREE: Final = 9
"""An address may have so many times as many connections as are still free: alone nine tenths of all, for it may be a
balancer's."""
UNTOLD_HANDSHAKES_MAX: Final = 128
"""TLS handshakes at work of those whose address has no room left, and who are told so behind it; of one address half of
them at most. Others are cut."""
HTTP_CONNECTIONS_MAX: Final = 10_000
"""Connections beside those of `limits.connections_max`: plain HTTP, and those that have not asked for anything yet."""
READER_BYTES_MIN: Final = 16 * 1024
"""What a client must read of an answer in each 10 s; one that reads less is cut."""
CLUSTER_STALE_SECONDS_MAX: Final = 5.0
"""How old what `/v1/cluster` says may be; beyond it the answer is 503."""
RECOVERY_BATCH_BYTES: Final = 4 * 1024 * 1024
"""Quarantined messages that are read from a backend and published again in one go."""
RECOVERY_SECONDS_MAX: Final = 10.0
"""How long one request to publish quarantined messages goes on; what is left then is the next one's."""
RECOVERY_BEGUN_MAX: Final = 64
"""Chunks in quarantine that are marked as begun before they are published; each waits for the one before."""
RECOVERY_SHOWN_MAX: Final = 100
"""Messages of a piece in quarantine that are shown."""
PROVISIONER_OUTPUT_BYTES_MAX: Final = 4096
"""The end of what a provisioner's program writes that is in the log."""
PROVISIONER_END_SECONDS: Final = 5.0
"""How long a provisioner's program that is asked to end may take before it is killed."""
CLUSTER_RETRY_SECONDS: Final = 1.0
"""The pause before a gateway looks for the cluster's coordinator again."""
CONSOLE_LISTS_MAX: Final = 64
"""Tenants whose list of queues is kept for the console's pages."""
CONSOLE_LIST_SLICE: Final = 100
"""Queues that the console looks at in one go."""
CONSOLE_LIST_SHARE_MAX: Final = 0.01
"""Of a core: what one tenant's list of queues may cost while somebody looks at it."""
CONSOLE_LIST_WAIT_SECONDS: Final = 0.05
"""Of a core: a list of queues that takes longer to make is shown as it was while it is made anew."""
CONSOLE_LIST_KNOWN_SECONDS: Final = 90.0
"""How old such a list may be; whoever asks for an older one waits."""
CLUSTER_ENTRIES_MAX: Final = 64
"""Entries of `store.clusters`."""
