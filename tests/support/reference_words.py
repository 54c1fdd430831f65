"""The sentences of the reference tables that the code does not carry itself."""

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
    "RATE_LIMITED": "Too many connections; or nearly everything that was published for 10 s was above its rate; or "
    "more than 100 pings and pongs in a second, or 1,000 refused requests that are no publishes.",
    "TOKEN_EXPIRED": "The token has expired, or the key was revoked or rotated away. Come back with a new one.",
    "PROTOCOL_ERROR": "A frame that is none: it does not parse, is empty, or has an unknown `type`.",
    "UNAUTHENTICATED": "No credential, one that is not known, or another first frame than `connect`.",
    "FORBIDDEN": "A `refresh` with another caller's token. A missing scope is an `error` and the socket stays open.",
    "NO_SUCH_QUEUE": "Not sent in this version: a missing queue is an `error` and the socket stays open.",
    "REPLACED": "A newer connection went on with this session.",
    "TOO_LARGE": "A frame of more than 4 MiB.",
}

SETTINGS = {
    "data": "The data folder.",
    "dev": "For development: any localhost origin may connect, the demo is at `/demo`. Needs a loopback address.",
    "gateways": "Gateway processes, 1 to 64. More than 1 stand in front of [a process for storage]"
    "(../how-to/several-processes.md), and go neither with `dev` nor with `store.backends` or `metadata.url`.",
    "resume_ms": "How long the leases of a cut session wait for it, 0 to 3,600,000.",
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
    "queues.auto_create": "Queues that a publish makes: a list of `{pattern, config}`; the first pattern that fits "
    "counts. As a variable it is JSON.",
    "limits.connections_max": "WebSockets and SSE streams of the process, 1 to 1,000,000.",
    "limits.request_bytes_max": "The body of one HTTP request, 1,024 to 1,073,741,824.",
    "limits.leftover_bytes_max": "What is read, and thrown away, of a body that was answered before it had come, 0 to "
    "1,099,511,627,776. A connection with more of it is cut.",
    "limits.leftover_seconds_max": "For how long, 0 to 3,600.",
    **{
        f"limits.{what}_per_{whom}_max": f"{text} of a{'n' * (whom == 'address')} {whom} in the process, 0 to "
        "1,000,000; 0 is any number."
        for what, text in (
            ("connections", "WebSockets, event streams and waiting receives"),
            ("subscriptions", "Subscriptions"),
        )
        for whom in ("tenant", "principal", "address")
    },
    "limits.open_per_address_max": "Connections of any kind of an address, or of an IPv6 network of 64 bits, those "
    "that have asked for nothing yet among them, 0 to 1,000,000; 0 is nine tenths of what the process takes.",
    "throttling.store": "Where rates are counted: `memory`, each gateway for itself, or `redis`.",
    "throttling.rules": "[Rules of rates](../how-to/rate-limits.md): a list of `{name, quota, window_s, per, "
    "operations, unit, when_store_is_away}`. As a variable it is JSON.",
    "limits.accepts_per_s": "New WebSockets and SSE streams a second, 1 to 1,000,000: of those who show a good "
    "credential with their request, and as many of all others; nine tenths of that for one principal or address. What "
    "comes above it is refused with `overloaded` and told when to come back.",
    "limits.accepts_burst": "How many of them may come at once, 1 to 1,000,000.",
    "limits.drain_window_s": "Over how many seconds a drain closes sockets at most, 0 to 60; few sockets are closed "
    "faster. The process ends up to 6 s after.",
    "limits.unread_s": "How long a WebSocket that was sent messages may say nothing, 0 to 3,600: then it gets no more, "
    "and what it was sent since goes to others, untried, until it is heard again. Half-way it is sent a `ping`. 0: for "
    "as long as it likes.",
    "overload.memory_max_bytes": "What the process may use; 0 is the limit of its control group, or the machine's "
    "memory. At 60 %, 70 % and 80 % of it the process takes on less.",
    "overload.lag_ms_max": "How late the event loop may be (99th percentile over 5 s) before new sockets are refused, "
    "10 to 60,000.",
    "overload.sojourn_ms_max": "How long publishes may wait for the disk, 5 to 60,000. When they wait longer for half "
    "a second, new ones are refused until they do not.",
    "metrics.open_to": "Who reads [`/metrics`](metrics.md) without an operator's key: `local`, processes of this "
    "machine while `http.listen` is of this machine, too; `nobody`; or `everybody`.",
    "metrics.listen": "An address of its own for `/metrics`, where it needs no key; empty for none.",
    "auth.jwt.audience": "What the claim `aud` of a token must name.",
    "auth.jwt.leeway_s": "Seconds that clocks of issuers may be off, 0 to 300.",
    "auth.jwt.key_days_max": "How long API keys last at most that are made or rotated with a token, 0 to 3,650 days; "
    "with 0 tokens make none.",
    "auth.jwt.algorithms": "Algorithms that tokens may be signed with. `HS256` only counts for issuers with a secret, "
    "the others only for issuers with public keys.",
    "auth.jwt.jwks_max_age_s": "Seconds until key sets are read anew, 10 to 86,400.",
    "auth.jwt.issuers": "Whose tokens are taken: a list of [tables](#issuers-of-tokens). As a variable it is JSON.",
    "dispatch.timeout_ms": "How long a publish waits for the disk that names no `timeout_ms`, 1 to 60,000.",
    "metadata.url": "A metadata service that keeps queue definitions, keys and tenants for this server, "
    "`wss://HOST:PORT`, or its hosts with commas in between; on this machine `ws`, too. See "
    "[caching](../explanation/caching.md).",
    "metadata.form": "How the hosts of that service share what they hold: every host has everything (`replicated`), "
    "this server asks the host that keeps a name (`sharded`), or hosts ask each other (`ring`). The same as theirs.",
    "metadata.secret_file": "The file with that service's secret, `metadata.secret` of its data folder.",
    "metadata.tls_cert": "The certificate that this process shows to the service at `wss`, and of `pushq metadata` the "
    "one that it serves with; from `pushq ca`.",
    "metadata.tls_key": "That certificate's key.",
    "metadata.tls_ca": "The authority that signs the certificates of the service and of all who ask it.",
    "store.backends": "Backends that keep the messages in place of the data folder, `HOST:PORT` each. This gateway "
    "then takes queue definitions, keys and tenants from them as well.",
    "store.cluster": "What the cluster of `store.backends` is called where there are others, 1 to 31 of a-z, 0-9 and "
    "hyphen.",
    "store.clusters": "[Further clusters](../how-to/several-clusters.md) that keep messages: a list of "
    "[tables](#further-clusters). As a variable it is JSON.",
    "store.tls_cert": "The certificate that this gateway shows to its backends, from `pushq ca`.",
    "store.tls_key": "That certificate's key.",
    "store.tls_ca": "The authority that signed the backends' certificates. Without TLS only backends of this machine "
    "are asked.",
    "catalogue.stale_max_s": "How long queues are served that a silent metadata service did not confirm, 5 to "
    "2,592,000.",
    "catalogue.identity_stale_max_s": "The same for keys and tenants, 5 to 86,400: a revoked key works for so long at "
    "most.",
    "node.name": "The name of a backend, which no other one of its cluster has. Its certificate must be for it.",
    "node.zone": "Where a backend or a gateway stands; the replicas of a shard are spread over zones, and what has no "
    "key goes to independent hosts in the gateway's zone while one is there. Of the metadata service's hosts those "
    "in the zone are asked first.",
    "node.listen": "Where a backend listens for the others, by mutual TLS. Port 0 takes a free one.",
    "node.service": "Where a backend listens for gateways, `HOST:PORT`: what `store.backends` of a gateway names.",
    "node.http": "Where a backend says how it is: `/lbz`, `/health`, `/metrics`, without TLS.",
    "node.tls_cert": "The file of a backend's certificate, for its name and its address. `pushq ca` makes some.",
    "node.tls_key": "The file of that certificate's key.",
    "node.tls_ca": "The authority that signs the certificates of all backends; nobody else is let in.",
    "cluster.coordinator": "Through what backends agree: `embedded`, for one that is alone, or "
    "`etcd://HOST:PORT,HOST:PORT/NAMESPACE`. Clusters that share an etcd have a namespace each; without it, `pushq`. "
    "A gateway that has it shows backends and shards in `/v1/cluster`.",
    "cluster.etcd_tls_ca": "The authority of etcd's certificate. Empty speaks to etcd in clear, which is refused where "
    "it is on another machine.",
    "cluster.etcd_tls_cert": "The certificate that is shown to etcd, where it asks for one.",
    "cluster.etcd_tls_key": "The file of that certificate's key.",
    "cluster.etcd_user": "The user that etcd knows.",
    "cluster.etcd_password_file": "The file with that user's password.",
    "cluster.model": "`leader_follower`: a queue lies in one shard, which one backend leads; `independent_hosts`: each "
    "queue has a lane at each of `cluster.lanes` backends. It cannot change later. See "
    "[independent hosts](../explanation/independent-hosts.md#what-runs).",
    "cluster.lanes": "Of independent hosts how many have a lane, 1 to 16. It cannot change later.",
    "cluster.shards": "Shards of the cluster, 1 to 256: a few for each backend. More can be made later, never fewer.",
    "cluster.replicas": "Copies of each shard, 1 to 7. A backend that is alone has one.",
    "cluster.min_in_sync": "On so many disks a message must be before it is confirmed, 1 to 7.",
    "cluster.replication": "`sync`: confirmed when it is on the disks of all in sync; `async`: on the "
    "leader's. See [replication](../explanation/replication.md). Of queues that do not "
    "[ask for one of the two](queue-settings.md#copies).",
    "cluster.async_shards": "So many more shards, 0 to 64, for queues that ask for mode async; where "
    "`cluster.replication` is async there are none.",
    "cluster.replace_after_s": "A backend that is away for so many seconds loses its copies to other ones; 0: never.",
    "cluster.rebalance_after_s": "So many seconds after a backend came, copies and leaderships are evened out; 0: only "
    "when `pushq cluster rebalance` asks for it.",
    "cluster.move_bytes_per_s": "Bytes a second that one backend reads for copies that are made elsewhere; 0: as fast "
    "as it goes.",
    "cluster.scrub_bytes_per_s": "Bytes a second that one backend reads of its disk to find rows that are not what was "
    "written; 0: none.",
    "cluster.scrub_every_s": "So long after a backend has read its whole disk so it begins anew.",
    "manager.name": "What events call this [manager of all clusters](../how-to/manage-clusters.md). Empty: the host's "
    "name and the process's number.",
    "manager.listen": "Its address for health and metrics, in clear.",
    "manager.look_s": "How often it looks at all clusters, in seconds, 1 to 10.",
    "manager.provisioner": "Who [provides servers](../how-to/manage-clusters.md#have-servers-provided): a program and "
    "its arguments, without a shell, or the https URL of a web service. Empty: nobody does. Shown without arguments "
    "and path.",
    "manager.provisioner_token_file": "A file with the token for the web service, sent as `Authorization: Bearer`.",
    "manager.provisioner_timeout_s": "Seconds that one call may take, 1 to 3,600; then it is ended.",
    "manager.nodes_min": "So many backends or fewer no cluster is asked to give one of back, 1 to 1,000.",
    "manager.nodes_max": "More backends than these are asked for in no cluster, 1 to 1,000.",
    "manager.grow_after_s": "Seconds that a cluster is hot before it grows, 0 to 86,400.",
    "manager.shrink_after_s": "Seconds that a cluster is nearly idle before it shrinks, 0 to 604,800.",
    "manager.pause_s": "Seconds between two changes of a cluster's size, 0 to 86,400.",
    "manager.relief": "What becomes of its [plan for hot "
    "clusters](../how-to/manage-clusters.md#see-what-would-cool-a-cluster): `plan` (it is shown) or `move` (its "
    "queues are moved, split and merged).",
    "encryption.master": "Where the master key comes from: `file` (`master.key` in the data folder), `environment` "
    "(`PUSHQ_MASTER_KEY`, or the file that `PUSHQ_MASTER_KEY_FILE` names), or `command`.",
    "encryption.command": "The program that wraps and unwraps data keys, and its arguments.",
    "encryption.command_key": "Which of its keys the program is to wrap with.",
    "encryption.command_timeout_ms": "How long the program may take, 100 to 60,000.",
    "encryption.data_key_days": "After how many days a queue gets a new data key, 1 to 3,650.",
    "logs.level": "The least that is said: `debug`, `info`, `warning` or `error`.",
    "logs.format": "`json`, `text`, or `auto`: text on a terminal, JSON elsewhere.",
    "logs.access": "One line for each request to the API.",
    "tracing.spans": "[Spans](../how-to/trace-messages.md) of publishes, deliveries, receives and settlements, through "
    "OpenTelemetry.",
    "redis.url": "`redis://[:PASSWORD@]HOST:PORT/DB` or `rediss://…` of a Redis that gateways share. Shown without its "
    "password.",
    "redis.url_file": "A file with that URL in it, in place of `redis.url`.",
    "storage.publish_stop_percent": "How full the disk may be, whoever filled it, while publishes go on, 1 to 99. See "
    "[when the disk is full](../how-to/full-disk.md).",
    "storage.ballast_bytes": "The size of the file that is given up when the disk is full, at least 1,048,576; 0 is "
    "2 % of the disk, at most 256 MiB.",
    "storage.clock_jump_days_max": "How many days after the last time in the data folder the clock may be at a start, "
    "1 to 36,500; further ahead, the server does not start. See "
    "[clocks](../explanation/clocks.md#the-process-starts-with-another-clock).",
    "usage.dir": "Where [usage files](../how-to/usage.md) are written; empty is `usage` in the data folder.",
    "usage.period_seconds": "How often there are new ones, 1 to 3600.",
    "usage.bytes_max": "What that folder may hold. The oldest minutes go first; the ledger and the audit wait in the "
    "store.",
    "alerts.webhook_networks": "Networks that webhooks of alerts may go to beside the public Internet, such as "
    "`10.1.0.0/16`. Without it a webhook to this machine or a private network is refused.",
    "usage.kept_days": "For how many days `/v1/usage` knows each day's totals.",
    "usage.live_dir": "Where the job [`live_usage`](../how-to/usage-jobs.md#see-it-live) writes, its `--to`; empty "
    "shows nothing live.",
}

LEDGER_KINDS = {
    "opening": "were there when the ledger began: of data from before it, or of a restored backup.",
    "published": "producers published. There for every range, also with 0.",
    "moved_in": "came from another queue: dead letters, redrives, what a deleted queue held.",
    "copied": "a consumer group of a stream gave up: the copy is a dead letter, the stream keeps its own.",
    "settled": "were acknowledged, or handed out where the queue delivers at most once.",
    "expired": "ended by their time to live, and went nowhere.",
    "overflowed": "made room in a full queue, and went nowhere.",
    "retired": "a stream does not keep any more.",
    "cancelled": "were taken back before anybody had them.",
    "dropped": "could not be delivered, in a queue without dead letters.",
    "purged": "were purged.",
    "moved_out": "went to another queue.",
    "deleted": "went with their queue.",
    "lost": "were in an entry that did not verify and was put aside.",
    "dead_lettered": "became dead letters; they are held until something else becomes of them.",
    "late": "went to the late messages; they are held, too.",
    "read": "a stream's consumer groups acknowledged, once for each group.",
    "unexplained": "do not add up. There is no such row, or there is a mistake in Pushq.",
    "held": "are there at `to`: ready, leased, scheduled, dead, late or on their way. There for every range.",
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
    "connect": "Opens the session, or goes on with one that was cut. The first frame.",
    "subscribe": "Have a queue's messages pushed.",
    "begin": "A handler begins with these; see [attempts](../protocol.md#what-counts-as-an-attempt).",
    "unsubscribe": "No more; what is held returns at once, and is ready when `ok` comes.",
    "credit": "`n` more messages may be outstanding.",
    "publish": "Store messages.",
    "ack": "Settle messages.",
    "nack": "Give messages back; the attempt counts, unless nobody `tried`.",
    "extend": "Hold messages for longer.",
    "refresh": "Go on with a newer token of the same caller.",
    "ping": "Say `pong`.",
    "pong": "A sign of life.",
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
    """Plain words with the names of settings and values as code, and those of `choices` before a colon too."""
    text = _CODE.sub(lambda found: f"`{found['quoted'] or found[0]}`", text)
    for choice in choices:
        text = re.sub(rf"(?<![\w`]){choice}(?=:)", f"`{choice}`", text)
    return text
