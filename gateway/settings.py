"""Everything `pushq serve` can be told, as types with their defaults. How they are read stands in `config`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from gateway.addresses import Address, parse_address
from gateway.auto_create import AutoCreate
from gateway.clusters import BackendsOf
from gateway.issuers import Jwt
from gateway.limits import LEFTOVER_BYTES_DEFAULT, LEFTOVER_SECONDS_DEFAULT
from gateway.rate_rules import RateRule
from push.limits import (
    ACCEPTS_BURST_DEFAULT,
    ACCEPTS_PER_SECOND_DEFAULT,
    DRAIN_SECONDS_DEFAULT,
    PUBLISH_MS_DEFAULT,
    UNREAD_SECONDS_DEFAULT,
)


class Http(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the API listens, and which pages may use it."""

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
    """Addresses and networks of the balancers in front."""


class Queues(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What may be done to queues from afar."""

    allow_delete_over_http: bool = False
    auto_create: tuple[AutoCreate, ...] = ()
    """Queues that a publish makes, by patterns of their names; the first that fits counts."""


class Dispatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long requests wait."""

    timeout_ms: int = PUBLISH_MS_DEFAULT
    """A publish that names no time of its own."""


class MetadataSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where queue definitions, API keys and tenants are kept, if not in the data folder."""

    url: str = ""
    """A metadata service, `wss://HOST:PORT`, or its hosts with commas; `ws` on this machine; empty for the data folder
    of this process."""
    secret_file: str = ""
    """The file with the service's secret, `metadata.secret` of its data folder."""
    form: Literal["replicated", "sharded", "ring"] = "replicated"
    """How its hosts share the records; with one host it does not matter."""
    tls_cert: str = ""
    """The certificate that this process shows to the service, or to those who ask it."""
    tls_key: str = ""
    tls_ca: str = ""
    """The authority that signs the certificates of the service and of all who ask it."""


class StoreSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where messages are kept, if not in the data folder."""

    backends: tuple[str, ...] = ()
    """Backends of the home cluster, `HOST:PORT` each; empty for the data folder of this process."""
    cluster: str = "main"
    """What the home cluster is called, which has the definitions of all queues."""
    clusters: tuple[BackendsOf, ...] = ()
    """Further clusters, which keep messages alone."""
    tls_cert: str = ""
    """The certificate that this gateway shows to backends."""
    tls_key: str = ""
    tls_ca: str = ""
    """The authority that signed the backends' certificates."""


class CatalogueSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long metadata of another process are served that nobody confirmed."""

    stale_max_s: int = 3600
    """Queues, while the metadata service is silent."""
    identity_stale_max_s: int = 300
    """API keys and tenants, while the metadata service is silent: a revoked key may work for so long."""


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds an operator may move."""

    connections_max: int = 20_000
    """WebSockets and SSE streams of this process."""
    connections_per_tenant_max: int = 10_000
    """WebSockets, event streams and waiting receives of a tenant in this process; 0 is any number. So are the next."""
    connections_per_principal_max: int = 0
    connections_per_address_max: int = 0
    open_per_address_max: int = 0
    """Connections of any kind of an address; 0 is nine tenths of all."""
    subscriptions_per_tenant_max: int = 0
    """Subscriptions of a tenant in this process, over all its sockets and streams."""
    subscriptions_per_principal_max: int = 0
    subscriptions_per_address_max: int = 0
    request_bytes_max: int = 16 * 1024 * 1024
    """The body of one HTTP request."""
    leftover_bytes_max: int = LEFTOVER_BYTES_DEFAULT
    """What is read of a body that was answered before it had come."""
    leftover_seconds_max: int = LEFTOVER_SECONDS_DEFAULT
    """And for how long."""
    accepts_per_s: int = ACCEPTS_PER_SECOND_DEFAULT
    """New WebSockets and SSE streams a second; above it they are asked to come back later."""
    accepts_burst: int = ACCEPTS_BURST_DEFAULT
    """How many of them may come at once."""
    drain_window_s: int = DRAIN_SECONDS_DEFAULT
    """Over how long a drain closes sockets, at most; the process ends up to 6 s later."""
    unread_s: int = UNREAD_SECONDS_DEFAULT
    """How long a WebSocket that was sent messages may be silent until others get them; 0: as long as it likes."""


class OverloadSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """From which readings the process takes on less."""

    memory_max_bytes: int = 0
    """What the process may use; 0 is the limit of its control group, or the machine's memory."""
    lag_ms_max: int = 100
    """How late the event loop may be before new sockets are refused."""
    sojourn_ms_max: int = 50
    """How long publishes may wait for the disk before new ones are refused."""


class Throttling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much callers may ask, and where that is counted."""

    store: Literal["memory", "redis"] = "memory"
    """`redis`: gateways share their counts, in the Redis of `redis.url`."""
    rules: tuple[RateRule, ...] = ()
    """Rules beside the one for principals; one that is called `principal` takes its place."""


class Auth(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who may call, beside the API keys that this server made."""

    jwt: Jwt = Jwt()


class Redis(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where state lies that several gateways share and that may be lost: counts of rates, replies by key."""

    url: str = ""
    """`redis://[:PASSWORD@]HOST:PORT/DB`, or `rediss://` for TLS. A secret: see `address`."""
    url_file: str = ""
    """A file that holds the URL in its first line, so that the password stands in no settings."""

    def address(self) -> str:
        """The URL from wherever it was given; empty without one. Raises `OSError`."""
        return Path(self.url_file).read_text().strip() if self.url_file else self.url


class Usage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Files of what was counted: the ledger, the minutes and the audit."""

    dir: str = ""
    """Where they are written; empty: `usage` in the data folder. Several processes may share one."""
    period_seconds: int = 60
    """How often there are new ones."""
    bytes_max: int = 1024 * 1024 * 1024
    """What the folder may hold. The oldest minutes go first; the ledger and the audit never do: they wait."""
    kept_days: int = 400
    """For how many days `/v1/usage` knows each day's totals."""
    live_dir: str = ""
    """Where the job `live_usage` writes, its `--to`; empty: there is none, and nothing live is shown."""


class Encryption(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the master key comes from that wraps the queues' data keys."""

    master: Literal["file", "environment", "command"] = "file"
    command: tuple[str, ...] = ()
    """The program that wraps and unwraps, and its arguments."""
    command_key: str = ""
    """Which of its keys the program is to wrap with."""
    command_timeout_ms: int = 5_000
    data_key_days: int = 30
    """How long one data key seals what comes."""


class StorageSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much of the data folder's disk is left alone."""

    publish_stop_percent: int = 90
    """How full the disk may be, whoever filled it, while publishes go on."""
    ballast_bytes: int = 0
    """The file that is given up when the disk is full; 0 is 2 % of the disk, at most 256 MiB."""


class Logs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is said on stderr, and how."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "text"] = "auto"
    """`auto`: text where a person watches, JSON elsewhere."""
    access: bool = False
    """One line for each request to the API."""


class Tracing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is told to OpenTelemetry."""

    spans: bool = False
    """Spans of publishes, deliveries, receives and settlements; needs the extra `otel`."""


class AlertSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where alerts may be told."""

    webhook_networks: tuple[str, ...] = ()
    """Networks that webhooks may go to beside the public Internet."""


class MetricsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who may read `/metrics` without an operator's key."""

    open_to: Literal["local", "nobody", "everybody"] = "local"
    """`local`: processes of this machine, while the server listens to no other."""
    listen: str = ""
    """An address of its own, `HOST:PORT`, where it needs no key; there is nothing else. Empty: none."""


class NodeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one backend of a cluster is, for `pushq backend`; a gateway has its zone alone."""

    name: str = ""
    zone: str = ""
    """Where it stands; replicas are spread over zones, and a gateway brings what has no key to independent hosts in its
    own zone while one is there, and asks hosts of the metadata service in it first."""
    listen: str = "127.0.0.1:8090"
    """For other backends, by mutual TLS."""
    http: str = "127.0.0.1:8091"
    """For health and metrics, without TLS."""
    service: str = "127.0.0.1:8092"
    """For gateways, by mutual TLS with the same certificate."""
    tls_cert: str = ""
    """The file of its certificate, which must be for its name and for the address that it listens on."""
    tls_key: str = ""
    tls_ca: str = ""
    """The authority that signs the certificates of all backends."""


Model = Literal["leader_follower", "independent_hosts"]
"""How the backends of a cluster share its queues."""


class ClusterSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What all backends of a cluster are told alike."""

    coordinator: str = "embedded"
    """`embedded`, for one backend alone, or `etcd://HOST:PORT[,HOST:PORT][/NAMESPACE]`."""
    etcd_tls_ca: str = ""
    """The authority of etcd's certificate; empty speaks to it in clear, which is for one machine."""
    etcd_tls_cert: str = ""
    """The certificate that is shown to etcd, where it asks for one."""
    etcd_tls_key: str = ""
    etcd_user: str = ""
    etcd_password_file: str = ""
    """A file that holds the user's password, so that it stands in no settings."""
    model: Model = "leader_follower"
    """`independent_hosts`: every queue has a lane at each of `lanes` hosts, and nobody is elected for it."""
    lanes: int = 3
    """How many hosts have a lane, where `model` is `independent_hosts`; it cannot change later."""
    shards: int = 4
    replicas: int = 3
    min_in_sync: int = 2
    replication: Literal["sync", "async"] = "sync"
    async_shards: int = 1
    """So many more shards, for queues that ask for mode async; where `replication` is async they need none."""
    replace_after_s: int = 300
    """A backend that is away for so long loses its copies to others; 0: never."""
    rebalance_after_s: int = 60
    """Copies are evened out so long after a backend came; 0: only when asked."""
    move_bytes_per_s: int = 32 * 1024 * 1024
    """What one backend reads for copies that are made elsewhere; 0: as fast as it goes."""
    scrub_bytes_per_s: int = 4 * 1024 * 1024
    """What one backend reads of its disk to find rows that are not what was written; 0: none of it."""
    scrub_every_s: int = 86_400
    """So long after it has read all of it it begins anew."""


class ManagerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `pushq manager` is told beside `store.*`."""

    name: str = ""
    """What events call it; empty: the host's name and the process's number."""
    listen: str = "127.0.0.1:8089"
    """For health and metrics, without TLS."""
    look_s: int = 5
    """How often it looks at all clusters."""
    provisioner: str = ""
    """Who provides servers: a command, without a shell, or the https URL of a web service. Empty: nobody does."""
    provisioner_token_file: str = ""
    """A file with the token that the web service is shown."""
    provisioner_timeout_s: int = 600
    """How long one call may take."""
    nodes_min: int = 3
    """Backends below which no cluster shrinks."""
    nodes_max: int = 1_000
    grow_after_s: int = 60
    """For so long a cluster is hot before it grows."""
    shrink_after_s: int = 900
    """For so long a cluster is nearly idle before it shrinks."""
    pause_s: int = 300
    """Between two changes of a cluster's size."""
    relief: Literal["plan", "move"] = "plan"
    """What becomes of its plan: shown, or its queues are moved, split and merged."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything `pushq serve` can be told."""

    data: str = "./pushq-data"
    dev: bool = False
    gateways: int = 1
    resume_ms: int = 5000
    """How long a cut session's messages wait for it to come back."""
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
        """Where the API is for somebody on this machine."""
        plain = self.address._replace(port=port).url
        return plain.replace("http", "https", 1) if self.http.tls_cert else plain
