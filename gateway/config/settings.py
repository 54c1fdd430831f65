"""All settings of `pushq serve` and the other roles as types with defaults. `config` loads and checks them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from gateway.admission.rate_rules import RateRule
from gateway.clusters.configured import BackendsOf
from gateway.config.addresses import Address, parse_address
from gateway.identity.issuers import Jwt
from gateway.limits import LEFTOVER_BYTES_DEFAULT, LEFTOVER_SECONDS_DEFAULT
from gateway.queues.auto_create import AutoCreate
from push.limits import (
    ACCEPTS_BURST_DEFAULT,
    ACCEPTS_PER_SECOND_DEFAULT,
    DRAIN_SECONDS_DEFAULT,
    PUBLISH_MS_DEFAULT,
    UNREAD_SECONDS_DEFAULT,
)


class Http(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the API listens, and which web pages may use it."""

    listen: str = "127.0.0.1:8080"
    allowed_origins: tuple[str, ...] = ()
    """Origins of pages, besides the server's own, that may connect: `https://shop.example`, or `*`."""
    tls_cert: str = ""
    """The file of the certificate and its chain; with it the listener speaks TLS only."""
    tls_key: str = ""
    tls_client_ca: str = ""
    """Certificates of authorities: clients must show one that these signed."""
    proxy_protocol: bool = False
    """Whether connections of `trusted_proxies` begin with a PROXY header."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses and networks of the load balancers in front."""


class Queues(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What remote callers may do to queues."""

    allow_delete_over_http: bool = False
    auto_create: tuple[AutoCreate, ...] = ()
    """Queues that a publish creates, by patterns of their names; the first match applies."""


class Dispatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long requests wait."""

    timeout_ms: int = PUBLISH_MS_DEFAULT
    """For a publish that states no timeout of its own."""


class MetadataSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where queue definitions, API keys and tenants are kept, if not in the data folder."""

    url: str = ""
    """A metadata service, `wss://HOST:PORT`, or its hosts with commas; `ws` on this machine; empty for the data folder
    of this process."""
    secret_file: str = ""
    """The file with the service's secret, `metadata.secret` of its data folder."""
    form: Literal["replicated", "sharded", "ring"] = "replicated"
    """How its hosts share the records; irrelevant with one host."""
    tls_cert: str = ""
    """The certificate that this process presents to the service, or as the service to its clients."""
    tls_key: str = ""
    tls_ca: str = ""
    """The authority that signs the certificates of the service and of its clients."""


class StoreSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where messages are kept, if not in the data folder."""

    backends: tuple[str, ...] = ()
    """Backends of the home cluster, `HOST:PORT` each; empty for the data folder of this process."""
    cluster: str = "main"
    """Name of the home cluster, which has the definitions of all queues."""
    clusters: tuple[BackendsOf, ...] = ()
    """Further clusters, which keep only messages."""
    tls_cert: str = ""
    """The certificate that this gateway presents to backends."""
    tls_key: str = ""
    tls_ca: str = ""
    """The authority that signed the backends' certificates."""


class CatalogueSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long cached metadata of another process are served without confirmation."""

    stale_max_s: int = 3600
    """For queues, while the metadata service does not answer."""
    identity_stale_max_s: int = 300
    """For API keys and tenants, while the metadata service does not answer: a revoked key may work this long."""


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds that an operator may change."""

    connections_max: int = 20_000
    """WebSockets and SSE streams of this process."""
    connections_per_tenant_max: int = 10_000
    """WebSockets, event streams and waiting receives of a tenant in this process; 0: no limit, as below."""
    connections_per_principal_max: int = 0
    connections_per_address_max: int = 0
    open_per_address_max: int = 0
    """Connections of any kind per address; 0: any number that leaves room for others, at most nine tenths of all."""
    subscriptions_per_tenant_max: int = 0
    """Subscriptions of a tenant in this process, over all its sockets and streams."""
    subscriptions_per_principal_max: int = 0
    subscriptions_per_address_max: int = 0
    request_bytes_max: int = 16 * 1024 * 1024
    """The body of one HTTP request."""
    leftover_bytes_max: int = LEFTOVER_BYTES_DEFAULT
    """Bytes read of a body that was answered before it had arrived."""
    leftover_seconds_max: int = LEFTOVER_SECONDS_DEFAULT
    """How long such a body is read."""
    accepts_per_s: int = ACCEPTS_PER_SECOND_DEFAULT
    """New WebSockets and SSE streams per second; more are refused with advice to come back later."""
    accepts_burst: int = ACCEPTS_BURST_DEFAULT
    """Burst size of that rate."""
    drain_window_s: int = DRAIN_SECONDS_DEFAULT
    """Time over which a drain spreads the closing of sockets, at most; the process ends up to 6 s later."""
    unread_s: int = UNREAD_SECONDS_DEFAULT
    """How long a WebSocket with delivered messages may be silent before others get them; 0: no limit."""


class OverloadSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Readings from which the process sheds load."""

    memory_max_bytes: int = 0
    """Memory that the process may use; 0: the limit of its control group, or the machine's memory."""
    lag_ms_max: int = 100
    """How late the event loop may be before new sockets are refused."""
    sojourn_ms_max: int = 50
    """How long publishes may wait for the disk before new ones are refused."""


class Throttling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rate limits of callers, and where they are counted."""

    store: Literal["memory", "redis"] = "memory"
    """`redis`: gateways share their counts, in the Redis of `redis.url`."""
    rules: tuple[RateRule, ...] = ()
    """Rules beside the one for principals; one named `principal` replaces that."""


class Auth(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which callers may authenticate, beside holders of API keys that this server made."""

    jwt: Jwt = Jwt()


class Redis(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where gateways share state that may be lost: rate-limit counters, replies to idempotency keys."""

    url: str = ""
    """`redis://[:PASSWORD@]HOST:PORT/DB`, or `rediss://` for TLS. A secret: see `address`."""
    url_file: str = ""
    """A file that contains the URL, so that the password is in no settings."""

    def address(self) -> str:
        """The URL, from the setting or the file; empty without one. Raises `OSError`."""
        return Path(self.url_file).read_text().strip() if self.url_file else self.url


class Usage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Exported usage files: the ledger, the minutes and the audit."""

    dir: str = ""
    """Folder of the files; empty: `usage` in the data folder. Several processes may share one."""
    period_seconds: int = 60
    """Interval between new files."""
    bytes_max: int = 1024 * 1024 * 1024
    """Size limit of the folder. The oldest minutes are deleted; the ledger and the audit never are: they wait."""
    kept_days: int = 400
    """For how many days `/v1/usage` keeps each day's totals."""
    live_dir: str = ""
    """The output folder of the job `live_usage`, its `--to`; empty: no job, and no live usage is shown."""


class Encryption(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the master key comes from that wraps the queues' data keys."""

    master: Literal["file", "environment", "command"] = "file"
    command: tuple[str, ...] = ()
    """The program that wraps and unwraps, and its arguments."""
    command_key: str = ""
    """The key with which the program wraps."""
    command_timeout_ms: int = 5_000
    data_key_days: int = 30
    """How long one data key is used to seal."""


class StorageSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much of the data folder's disk stays free, and with which clock it is opened."""

    publish_stop_percent: int = 90
    """How full the disk may be, by whatever cause, before publishes are refused."""
    ballast_bytes: int = 0
    """Size of the file that is deleted when the disk is full; 0: 2 % of the disk, at most 256 MiB."""
    clock_jump_days_max: int = 366
    """How far the clock may be beyond the last time in the folder at a start."""


class Logs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is logged to stderr, and how."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "text"] = "auto"
    """`auto`: text on a terminal, JSON elsewhere."""
    access: bool = False
    """One line for each request to the API."""


class Tracing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is exported to OpenTelemetry."""

    spans: bool = False
    """Spans of publishes, deliveries, receives and settlements; needs the extra `otel`."""


class AlertSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where alerts may be sent."""

    webhook_networks: tuple[str, ...] = ()
    """Networks that webhooks may go to beside the public Internet."""


class MetricsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who may read `/metrics` without an operator's key."""

    open_to: Literal["local", "nobody", "everybody"] = "local"
    """`local`: processes of this machine, if the server listens on loopback only."""
    listen: str = ""
    """A further address, `HOST:PORT`, that serves only metrics, without a key. Empty: none."""


class NodeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One backend of a cluster, for `pushq backend`; a gateway uses only `zone`."""

    name: str = ""
    zone: str = ""
    """Its availability zone. Replicas are spread over zones. A gateway publishes messages without a key to independent
    hosts in its own zone while there is one, and asks hosts of the metadata service in its zone first."""
    listen: str = "127.0.0.1:8090"
    """For other backends, by mutual TLS."""
    http: str = "127.0.0.1:8091"
    """For health and metrics, without TLS."""
    service: str = "127.0.0.1:8092"
    """For gateways, by mutual TLS with the same certificate."""
    tls_cert: str = ""
    """The file of its certificate, which must be valid for its name and for its listen address."""
    tls_key: str = ""
    tls_ca: str = ""
    """The authority that signs the certificates of all backends."""


Model = Literal["leader_follower", "independent_hosts"]
Replication = Literal["sync", "async"]
"""How the backends of a cluster share its queues."""


class ClusterSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings that must be equal on all backends of a cluster."""

    coordinator: str = "embedded"
    """`embedded`, for one backend alone, or `etcd://HOST:PORT[,HOST:PORT][/NAMESPACE]`."""
    etcd_tls_ca: str = ""
    """The authority of etcd's certificate; empty: no TLS, which is for one machine."""
    etcd_tls_cert: str = ""
    """The certificate that is presented to etcd, if it asks for one."""
    etcd_tls_key: str = ""
    etcd_user: str = ""
    etcd_password_file: str = ""
    """A file that contains the user's password, so that it is in no settings."""
    model: Model = "leader_follower"
    """`independent_hosts`: every queue has a lane on each of `lanes` hosts, without leader election."""
    lanes: int = 3
    """How many hosts have a lane, if `model` is `independent_hosts`; it cannot change later."""
    shards: int = 4
    replicas: int = 3
    min_in_sync: int = 2
    replication: Replication = "sync"
    async_shards: int = 1
    """Further shards for queues that ask for mode async; not needed if `replication` is async."""
    replace_after_s: int = 300
    """A backend that is away this long has its copies replaced on others; 0: never."""
    rebalance_after_s: int = 60
    """Copies are rebalanced this long after a backend joined; 0: only on request."""
    move_bytes_per_s: int = 32 * 1024 * 1024
    """Rate at which one backend reads for copies made elsewhere; 0: no limit."""
    scrub_bytes_per_s: int = 4 * 1024 * 1024
    """Rate at which one backend scrubs its disk for corrupt rows; 0: no scrubbing."""
    scrub_every_s: int = 86_400
    """Pause between a complete scrub and the next."""


class ManagerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of `pushq manager` beside `store.*`."""

    name: str = ""
    """Its name in events; empty: the host's name and the process id."""
    listen: str = "127.0.0.1:8089"
    """For health and metrics, without TLS."""
    look_s: int = 5
    """How often it checks all clusters."""
    provisioner: str = ""
    """What provides servers: a command, without a shell, or the https URL of a web service. Empty: nothing does."""
    provisioner_token_file: str = ""
    """A file with the token for the web service."""
    provisioner_timeout_s: int = 600
    """How long one call may take."""
    nodes_min: int = 3
    """No cluster shrinks below this number of backends."""
    nodes_max: int = 1_000
    grow_after_s: int = 60
    """How long a cluster is hot before it grows."""
    shrink_after_s: int = 900
    """How long a cluster is nearly idle before it shrinks."""
    pause_s: int = 300
    """Minimum time between two changes of a cluster's size."""
    relief: Literal["plan", "move"] = "plan"
    """`plan`: its plan is only shown; `move`: queues are moved, split and merged by it."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All settings, by section."""

    data: str = "./pushq-data"
    dev: bool = False
    gateways: int = 1
    resume_ms: int = 5000
    """How long the leases of a disconnected session are kept for it to resume."""
    http: Http = Http()
    queues: Queues = Queues()
    limits: Limits = Limits()
    dispatch: Dispatch = Dispatch()
    metadata: MetadataSettings = MetadataSettings()
    store: StoreSettings = StoreSettings()
    catalogue: CatalogueSettings = CatalogueSettings()
    throttling: Throttling = Throttling()
    overload: OverloadSettings = OverloadSettings()
    auth: Auth = Auth()
    redis: Redis = Redis()
    logs: Logs = Logs()
    tracing: Tracing = Tracing()
    storage: StorageSettings = StorageSettings()
    usage: Usage = Usage()
    encryption: Encryption = Encryption()
    alerts: AlertSettings = AlertSettings()
    metrics: MetricsSettings = MetricsSettings()
    node: NodeSettings = NodeSettings()
    cluster: ClusterSettings = ClusterSettings()
    manager: ManagerSettings = ManagerSettings()

    @property
    def directory(self) -> Path:
        return Path(self.data)

    @property
    def usage_directory(self) -> Path:
        return Path(self.usage.dir) if self.usage.dir else self.directory / "usage"

    @property
    def address(self) -> Address:
        return parse_address(self.http.listen)

    def url(self, port: int) -> str:
        """The API's URL for clients on this machine."""
        plain = self.address._replace(port=port).url
        return plain.replace("http", "https", 1) if self.http.tls_cert else plain
