"""The texts of the reference tables that are not in the code itself."""

import re
from collections.abc import Sequence
from typing import Literal, get_args, get_origin, get_type_hints

from backend_store.model import AutoExpand, QueueConfig

RETRY = {
    "invalid-request": "no: fix it",
    "unauthenticated": "with another key",
    "forbidden": "with another key",
    "queue-not-found": "no",
    "not-found": "no",
    "method-not-allowed": "no",
    "conflict": "no",
    "stale-receipt": "no: wait for the redelivery",
    "request-in-progress": "after `retry_after_ms`",
    "precondition-failed": "after reading the current version",
    "message-too-large": "no: make it smaller",
    "unsupported-media-type": "no",
    "idempotency-mismatch": "no: with another key",
    "precondition-required": "with `If-Match`",
    "rate-limited": "after `Retry-After`",
    "too-many-connections": "after `Retry-After`",
    "internal": "perhaps",
    "not-leader": "not in this version",
    "unavailable": "after `Retry-After`",
    "overloaded": "after `Retry-After`",
    "draining": "after `Retry-After`",
    "not-durable": "after `Retry-After`",
    "outcome-unknown": "yes, with the same `id`",
    "queue-full": "when there is room",
    "storage-full": "when there is room",
    "dedupe-full": "when ids have left the window",
}

CLOSES = {
    "DRAIN": "The server shuts down. A `bye` frame with `retry_ms` came before.",
    "SLOW_CONSUMER": "The client did not read for 10 s.",
    "TIMED_OUT": "No `connect` within 5 s, or nothing was heard for 35 s; or the keys of a token's issuer are not "
    "read yet.",
    "KICKED": "An administrator ended the connection, and a `bye` frame said so. The session cannot be resumed.",
    "RATE_LIMITED": "Too many connections; or nearly everything published for 10 s was above its rate limit; or "
    "more than 100 pings and pongs in a second, or 1,000 refused requests other than publishes.",
    "TOKEN_EXPIRED": "The token has expired, or the key was revoked or rotated. Reconnect with a new one.",
    "PROTOCOL_ERROR": "An invalid frame: it does not parse, is empty, or has an unknown `type`.",
    "UNAUTHENTICATED": "No credential, an unknown one, or a first frame other than `connect`.",
    "FORBIDDEN": "A `refresh` with another caller's token. A missing scope is an `error` and the socket stays open.",
    "NO_SUCH_QUEUE": "Not sent in this version: a missing queue is an `error` and the socket stays open.",
    "REPLACED": "A newer connection resumed this session.",
    "TOO_LARGE": "A frame of more than 4 MiB.",
}

SETTINGS = {
    "data": "The data folder.",
    "dev": "For development: any localhost origin may connect, the demo is at `/demo`. Needs a loopback address.",
    "gateways": "Number of gateway processes, 1 to 64. More than 1 run in front of [a storage "
    "process](../how-to/several-processes.md), and cannot be combined with `dev`, `store.backends` or "
    "`metadata.url`.",
    "resume_ms": "How long the leases of a dropped session are kept for it to resume, 0 to 3,600,000.",
    "http.listen": "`HOST:PORT` or `[IPV6]:PORT`.",
    "http.allowed_origins": "Origins of pages, besides the server's own, that may use the API; `*` is any.",
    "http.tls_cert": "A file with the certificate and its chain, PEM. With it the listener speaks TLS, and only TLS. "
    "Read again when it changes.",
    "http.tls_key": "The file with the certificate's key, PEM, without a password.",
    "http.tls_client_ca": "A file with authorities, PEM: clients must show a certificate that one of them signed.",
    "http.proxy_protocol": "Whether connections of `http.trusted_proxies` begin with a PROXY header. Then they "
    "must, and no others may.",
    "http.trusted_proxies": "Addresses and networks of the balancers in front, such as `10.0.0.0/24`.",
    "queues.allow_delete_over_http": "Whether an admin key may delete queues over HTTP.",
    "queues.auto_create": "Queues that a publish creates: a list of `{pattern, config}`; the first matching "
    "pattern applies. As a variable it is JSON.",
    "limits.connections_max": "WebSockets and SSE streams of the process, 1 to 1,000,000.",
    "limits.request_bytes_max": "The body of one HTTP request, 1,024 to 1,073,741,824.",
    "limits.leftover_bytes_max": "Bytes read and discarded of a request body that was answered before it arrived "
    "completely, 0 to 1,099,511,627,776. A connection with more is closed.",
    "limits.leftover_seconds_max": "How long such a body is read, 0 to 3,600.",
    **{
        f"limits.{what}_per_{whom}_max": f"{text} of a{'n' * (whom == 'address')} {whom} in the process, 0 to "
        "1,000,000; 0 is any number."
        for what, text in (
            ("connections", "WebSockets, event streams and waiting receives"),
            ("subscriptions", "Subscriptions"),
        )
        for whom in ("tenant", "principal", "address")
    },
    "limits.open_per_address_max": "Connections of any kind per address, or per IPv6 /64 network, including idle "
    "ones, 0 to 1,000,000; 0 is nine tenths of the process's limit.",
    "throttling.store": "Where rates are counted: `memory`, per gateway, or `redis`, shared.",
    "throttling.rules": "[Rate limit rules](../how-to/rate-limits.md): a list of `{name, quota, window_s, per, "
    "operations, unit, when_store_is_away}`. As a variable it is JSON.",
    "limits.accepts_per_s": "New WebSockets and SSE streams per second, 1 to 1,000,000, for clients that "
    "authenticate with the request, and the same number for all others; at most nine tenths of it per principal or "
    "address. Excess connections are refused with `overloaded` and told when to retry.",
    "limits.accepts_burst": "Maximum burst of such connections, 1 to 1,000,000.",
    "limits.drain_window_s": "Maximum number of seconds over which a drain closes sockets, 0 to 60; few sockets "
    "are closed faster. The process exits up to 6 s later.",
    "limits.unread_s": "How long a WebSocket with unacknowledged deliveries may stay silent, 0 to 3,600. After "
    "that it gets no more messages, and those sent since go to other consumers without counting an attempt, until "
    "it is heard again. Half-way it is sent a `ping`. 0: no limit.",
    "overload.memory_max_bytes": "Memory limit of the process; 0 uses the limit of its control group, or the "
    "machine's memory. At 60 %, 70 % and 80 % of it the process sheds load.",
    "overload.lag_ms_max": "Event loop lag (99th percentile over 5 s) above which new sockets are refused, 10 to "
    "60,000.",
    "overload.sojourn_ms_max": "Maximum time publishes may wait for the disk, 5 to 60,000. If they wait longer "
    "for half a second, new ones are refused until the disk catches up.",
    "metrics.open_to": "Who may read [`/metrics`](metrics.md) without an operator's key: `local`, processes on "
    "this machine, if `http.listen` is a loopback address too; `nobody`; or `everybody`.",
    "metrics.listen": "A separate address for `/metrics` that needs no key; empty for none.",
    "auth.jwt.audience": "The value that a token's `aud` claim must contain.",
    "auth.jwt.leeway_s": "Allowed clock skew of issuers in seconds, 0 to 60. Sessions end at most 3 s later.",
    "auth.jwt.key_days_max": "Maximum lifetime of API keys that are created or rotated with a token, 0 to 3,650 "
    "days; with 0, tokens cannot create keys.",
    "auth.jwt.algorithms": "Allowed signature algorithms. `HS256` applies only to issuers with a secret, the "
    "others only to issuers with public keys.",
    "auth.jwt.jwks_max_age_s": "Seconds until key sets are reloaded, 10 to 86,400.",
    "auth.jwt.issuers": "Trusted token issuers: a list of [tables](#issuers-of-tokens). As a variable it is JSON.",
    "dispatch.timeout_ms": "How long a publish without a `timeout_ms` of its own waits for the disk, 1 to 60,000.",
    "metadata.url": "A metadata service that keeps queue definitions, keys and tenants for this server, "
    "`wss://HOST:PORT`, or its hosts with commas in between; on this machine `ws`, too. See "
    "[caching](../explanation/caching.md).",
    "metadata.form": "How the hosts of that service share what they hold: every host has everything (`replicated`), "
    "this server asks the host that keeps a name (`sharded`), or hosts ask each other (`ring`). The same as theirs.",
    "metadata.secret_file": "The file with that service's secret, `metadata.secret` of its data folder.",
    "metadata.tls_cert": "The certificate that this process shows to the service at `wss`, and of `pushq metadata` the "
    "one that it serves with; from `pushq ca`.",
    "metadata.tls_key": "Private key of that certificate.",
    "metadata.tls_ca": "The authority that signs the certificates of the service and of all who ask it.",
    "store.backends": "Backends that store the messages instead of the data folder, `HOST:PORT` each. This "
    "gateway then gets queue definitions, keys and tenants from them as well.",
    "store.cluster": "The name of the cluster of `store.backends` when there are others, 1 to 31 characters from "
    "a-z, 0-9 and hyphen.",
    "store.clusters": "[Further clusters](../how-to/several-clusters.md) that store messages: a list of "
    "[tables](#further-clusters). As a variable it is JSON.",
    "store.tls_cert": "The client certificate that this gateway shows to its backends, from `pushq ca`.",
    "store.tls_key": "Private key of that certificate.",
    "store.tls_ca": "The CA that signed the backends' certificates. Without TLS, only backends on this machine "
    "are used.",
    "catalogue.stale_max_s": "How long queues are served from cache while the metadata service is unreachable, 5 "
    "to 2,592,000.",
    "catalogue.identity_stale_max_s": "The same for keys and tenants, 5 to 86,400: a revoked key works at most "
    "this long.",
    "node.name": "The backend's name, unique in its cluster. Its certificate must be issued for it.",
    "node.zone": "The zone of a backend or gateway. The replicas of a shard are spread over zones; messages without a "
    "key go to independent hosts in the gateway's zone while one is available; and hosts of the metadata service in "
    "the same zone are asked first.",
    "node.listen": "Listen address for other backends, with mutual TLS. Port 0 selects a free one.",
    "node.service": "Listen address for gateways, `HOST:PORT`, as listed in a gateway's `store.backends`.",
    "node.http": "Listen address for status: `/lbz`, `/health`, `/metrics`, without TLS.",
    "node.tls_cert": "The backend's certificate file, issued for its name and address; see `pushq ca`.",
    "node.tls_key": "Private key file of that certificate.",
    "node.tls_ca": "The CA that signs the certificates of all backends; others are refused.",
    "cluster.coordinator": "The coordinator that backends share: `embedded`, for a single backend, or "
    "`etcd://HOST:PORT,HOST:PORT/NAMESPACE`. Clusters that share an etcd need a namespace each; the default is "
    "`pushq`. A gateway that has it shows backends and shards in `/v1/cluster`.",
    "cluster.etcd_tls_ca": "The CA of etcd's certificate. If empty, the connection to etcd is not encrypted, "
    "which is refused for an etcd on another machine.",
    "cluster.etcd_tls_cert": "The client certificate for etcd, if it requires one.",
    "cluster.etcd_tls_key": "Private key file of that certificate.",
    "cluster.etcd_user": "etcd user name.",
    "cluster.etcd_password_file": "File with that user's password.",
    "cluster.model": "`leader_follower`: a queue is in one shard, which one backend leads; `independent_hosts`: "
    "each queue has a lane on each of `cluster.lanes` backends. It cannot be changed later. See [independent "
    "hosts](../explanation/independent-hosts.md#what-runs).",
    "cluster.lanes": "Number of independent hosts with a lane, 1 to 16. It cannot be changed later.",
    "cluster.shards": "Number of shards in the cluster, 1 to 256: a few per backend. It can be raised later, but "
    "not lowered.",
    "cluster.replicas": "Copies of each shard, 1 to 7. A single backend has one.",
    "cluster.min_in_sync": "Number of disks that must have a message before it is confirmed, 1 to 7.",
    "cluster.replication": "`sync`: confirmed when it is on the disks of all in sync; `async`: on the "
    "leader's. See [replication](../explanation/replication.md). Of queues that do not "
    "[ask for one of the two](queue-settings.md#copies).",
    "cluster.async_shards": "Number of additional shards, 0 to 64, for queues that ask for mode async; there are "
    "none if `cluster.replication` is async.",
    "cluster.replace_after_s": "Seconds after which an unreachable backend's copies are rebuilt elsewhere; 0: never.",
    "cluster.rebalance_after_s": "Seconds after a backend joined until copies and leaderships are rebalanced; 0: "
    "only with `pushq cluster rebalance`.",
    "cluster.move_bytes_per_s": "Bytes per second that a backend reads for copies rebuilt elsewhere; 0: unlimited.",
    "cluster.scrub_bytes_per_s": "Bytes per second that a backend reads from its disk to detect corruption; 0: none.",
    "cluster.scrub_every_s": "Seconds between two complete reads of the disk.",
    "manager.name": "The name of this [manager of all clusters](../how-to/manage-clusters.md) in events. Default: "
    "host name and process id.",
    "manager.listen": "Listen address for health and metrics, without TLS.",
    "manager.look_s": "Seconds between checks of all clusters, 1 to 10.",
    "manager.provisioner": "Who [provides servers](../how-to/manage-clusters.md#have-servers-provided): a program and "
    "its arguments, without a shell, or the https URL of a web service. Empty: nobody does. Shown without arguments "
    "and path.",
    "manager.provisioner_token_file": "A file with the token for the web service, sent as `Authorization: Bearer`.",
    "manager.provisioner_timeout_s": "Maximum seconds per call, 1 to 3,600; then it is stopped.",
    "manager.nodes_min": "Minimum number of backends per cluster, 1 to 1,000; the manager shrinks none below it.",
    "manager.nodes_max": "Maximum number of backends per cluster, 1 to 1,000.",
    "manager.grow_after_s": "Seconds a cluster must be hot before it grows, 0 to 86,400.",
    "manager.shrink_after_s": "Seconds a cluster must be nearly idle before it shrinks, 0 to 604,800.",
    "manager.pause_s": "Minimum seconds between two size changes of a cluster, 0 to 86,400.",
    "manager.relief": "What becomes of its [plan for hot "
    "clusters](../how-to/manage-clusters.md#see-what-would-cool-a-cluster): `plan` (it is shown) or `move` (its "
    "queues are moved, split and merged).",
    "encryption.master": "Where the master key comes from: `file` (`master.key` in the data folder), `environment` "
    "(`PUSHQ_MASTER_KEY`, or the file that `PUSHQ_MASTER_KEY_FILE` names), or `command`.",
    "encryption.command": "The program that wraps and unwraps data keys, and its arguments.",
    "encryption.command_key": "The key that the program should wrap with.",
    "encryption.command_timeout_ms": "Timeout of the program, 100 to 60,000.",
    "encryption.data_key_days": "Days after which a queue gets a new data key, 1 to 3,650.",
    "logs.level": "Minimum level: `debug`, `info`, `warning` or `error`.",
    "logs.format": "`json`, `text`, or `auto`: text on a terminal, JSON elsewhere.",
    "logs.access": "Whether to log each API request.",
    "tracing.spans": "[Spans](../how-to/trace-messages.md) of publishes, deliveries, receives and settlements, through "
    "OpenTelemetry.",
    "redis.url": "`redis://[:PASSWORD@]HOST:PORT/DB` or `rediss://…` of a Redis shared by gateways. Shown without "
    "its password.",
    "redis.url_file": "A file that contains that URL, instead of `redis.url`.",
    "storage.publish_stop_percent": "Disk usage at which publishes stop, 1 to 99, whatever uses the space. See "
    "[when the disk is full](../how-to/full-disk.md).",
    "storage.ballast_bytes": "Size of the reserve file that is deleted when the disk is full, at least 1,048,576; "
    "0 is 2 % of the disk, at most 256 MiB.",
    "storage.clock_jump_days_max": "Maximum number of days between the last time in the data folder and the clock at a "
    "start, 1 to 36,500; if the clock is further ahead, the server does not start. See "
    "[clocks](../explanation/clocks.md#the-process-starts-with-another-clock).",
    "usage.dir": "Folder for [usage files](../how-to/usage.md); default: `usage` in the data folder.",
    "usage.period_seconds": "Seconds between usage files, 1 to 3600.",
    "usage.bytes_max": "Maximum size of that folder. The oldest minute files are deleted first; ledger and audit "
    "rows stay in the store.",
    "alerts.webhook_networks": "Networks that alert webhooks may reach besides the public Internet, such as "
    "`10.1.0.0/16`. Otherwise, webhooks to this machine or a private network are refused.",
    "usage.kept_days": "Number of days for which `/v1/usage` keeps daily totals.",
    "usage.live_dir": "The output folder (`--to`) of the job [`live_usage`](../how-to/usage-jobs.md#see-it-live); "
    "empty shows no live usage.",
}

LEDGER_KINDS = {
    "opening": "existed when the ledger began: from earlier data, or a restored backup.",
    "published": "producers published. Present for every range, even if 0.",
    "moved_in": "came from another queue: dead letters, redrives, messages of a deleted queue.",
    "copied": "a stream's consumer group gave up on: the copy is a dead letter, the stream keeps the original.",
    "settled": "were acknowledged, or handed out by a queue that delivers at most once.",
    "expired": "expired, and were not dead-lettered.",
    "overflowed": "were evicted from a full queue, and not dead-lettered.",
    "retired": "a stream no longer retains.",
    "cancelled": "were cancelled before any delivery.",
    "dropped": "could not be delivered, in a queue without dead letters.",
    "purged": "were purged.",
    "moved_out": "moved to another queue.",
    "deleted": "were deleted with their queue.",
    "lost": "were in an entry that failed verification and was quarantined.",
    "dead_lettered": "became dead letters; they are still held until something else happens to them.",
    "late": "became late messages; they are still held, too.",
    "read": "a stream's consumer groups acknowledged, once for each group.",
    "unexplained": "do not add up. Such a row indicates a bug in Pushq.",
    "held": "are held at `to`: ready, leased, scheduled, dead, late or in transit. Present for every range.",
}

QUEUE_VALUES = {
    "encrypted": "`true`, `false`",
    "auto_expand": "[an object](#growing-by-itself), `null`",
    "dead_letter_queue": "a queue's name, `null`",
    "colocate_with": "a queue's name, `null`",
    "replication": "an object",
    "tags": "string → string",
}

FRAMES = {
    "connect": "Opens a session, or resumes one. The first frame.",
    "subscribe": "Starts the delivery of a queue's messages.",
    "begin": "A handler starts processing these; see [attempts](../protocol.md#what-counts-as-an-attempt).",
    "unsubscribe": "Ends the subscription; held messages return at once, and are ready when `ok` arrives.",
    "credit": "Allows `n` more outstanding messages.",
    "publish": "Stores messages.",
    "ack": "Settles messages.",
    "nack": "Gives messages back; the attempt counts, unless `tried` is false.",
    "extend": "Extends the leases of messages.",
    "refresh": "Continues with a newer token of the same caller.",
    "ping": "Asks for a `pong`.",
    "pong": "Shows that the client is alive.",
}


def paragraph(docstring: str) -> str:
    """A docstring as one line."""
    return " ".join(docstring.split())


_KINDS = [kind for struct in (QueueConfig, AutoExpand) for kind in get_type_hints(struct).values()]
_CHOICES = sorted({str(choice) for kind in _KINDS if get_origin(kind) is Literal for choice in get_args(kind)})
_NAMES = sorted((*QueueConfig.__struct_fields__, *AutoExpand.__struct_fields__), key=len, reverse=True)
_CODE = re.compile(
    rf"""\b(?:{"|".join(_NAMES)}):[ ](?:\d+|null|{"|".join(_CHOICES)})\b"""  # dedupe: none
    rf"""|"(?P<quoted>\w+)"|<queue>\.\w+|\bnull\b|\b\w+-full\b"""
    rf"""|\b(?:{"|".join(name for name in [*_NAMES, *_CHOICES] if "_" in name)})\b"""
)


def marked(text: str, choices: Sequence[str] = ()) -> str:
    """Text with the names of settings and values marked as code; those of `choices` also before a colon."""
    text = _CODE.sub(lambda found: f"`{found['quoted'] or found[0]}`", text)
    for choice in choices:
        text = re.sub(rf"(?<![\w`]){choice}(?=:)", f"`{choice}`", text)
    return text
