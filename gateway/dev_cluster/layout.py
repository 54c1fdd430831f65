"""Plans the processes of clusters on this machine, with their arguments, once; each start uses the same plan."""

from __future__ import annotations

import json
import random
import re
import shlex
import shutil
import socket
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from gateway.config.settings import Model, Replication
from gateway.dev_ca import CA_CERTIFICATE, Pair, create, issue
from gateway.dev_cluster.limits import (
    BACKENDS_MAX,
    BACKENDS_MIN,
    BALLAST_BYTES,
    EVEN_OUT_AFTER_SECONDS,
    GROW_AFTER_SECONDS,
    MANAGER_LOOK_SECONDS,
    PAUSE_SECONDS,
    SHRINK_AFTER_SECONDS,
)
from gateway.dev_cluster.state import HOME, Part, State

HOST: Final = "127.0.0.1"
GATEWAYS: Final = ("gateway1", "gateway2")
BALANCER_SOURCE: Final = "127.0.0.2"
"""The address that the balancer connects from: gateways trust the PROXY header from it, and not from every process."""
UNFINISHED: Final = ".unfinished"
"""A marker file while a cluster is being made: other files in the folder are not in use yet."""
_ZONES: Final = 3
_PORTS_OF_BACKEND: Final = 3
_COORDINATOR: Final = "PUSHQ_CLUSTER__COORDINATOR"
_MODEL: Final = "PUSHQ_CLUSTER__MODEL"
_REPLICATION: Final = "PUSHQ_CLUSTER__REPLICATION"
_SERVICE: Final = "PUSHQ_NODE__SERVICE"
_PORTS: Final = range(20_000, 32_000)
"""Below the ephemeral ports of the system: no other connection takes them while a part is down."""
_SEARCHED: Final = ("/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin", "/sbin")


class MissingProgram(Exception):
    """A program that the machine lacks, and the command that installs it."""


def find_program(name: str) -> str | None:
    """Looks on PATH and where Debian installs it: an ordinary user's PATH lacks some of those folders."""
    return shutil.which(name) or shutil.which(name, path=":".join(_SEARCHED))


def models_of(state: State) -> list[Model]:
    """The model of each cluster, from the settings of its backends."""
    envs = [state.backends_of(cluster)[0].env for cluster in state.clusters]
    return ["independent_hosts" if env.get(_MODEL) == "independent_hosts" else "leader_follower" for env in envs]


def replication_of(state: State) -> Replication:
    """The mode of replication of all clusters, from the settings of a backend."""
    return "async" if state.of("backend")[0].env.get(_REPLICATION) == "async" else "sync"


def cluster_names(count: int) -> list[str]:
    """The names of `count` clusters, the home cluster first."""
    return [HOME, *(f"cluster{number}" for number in range(2, count + 1))]


class _Kind(NamedTuple):
    """The settings that all backends of a cluster share."""

    cluster: str
    coordinator: str
    model: Model
    replication: Replication
    evens_out: bool
    """A new backend gets its share of copies soon."""


def make(folder: Path, models: Sequence[Model] = ("leader_follower",), replication: Replication = "sync") -> State:
    """Plans new clusters of these models and this mode of replication, with ports, certificates and files below
    `folder`. Several clusters get a manager.

    Raises `MissingProgram`, `CaError`, `OSError`.
    """
    etcd, haproxy = find_program("etcd"), find_program("haproxy")
    if etcd is None:
        raise MissingProgram("etcd is not installed; install it with: sudo apt-get install -y etcd-server")
    _make_authority(folder)
    (folder / "logs").mkdir(mode=0o700, exist_ok=True)
    several = len(models) > 1
    ports = iter([f"{HOST}:{port}" for port in free_ports(6 + len(models) * BACKENDS_MIN * _PORTS_OF_BACKEND)])
    member = _etcd(folder, etcd, next(ports), next(ports))
    names = cluster_names(len(models))
    kinds = [
        _Kind(name, f"etcd://{member.address}" + ("" if name == HOME else f"/{name}"), model, replication, several)
        for name, model in zip(names, models, strict=True)
    ]
    backends = [_backend(folder, kind, number, ports) for kind in kinds for number in range(1, BACKENDS_MIN + 1)]
    gateways = [_gateway(folder, name, kinds, backends, next(ports)) for name in GATEWAYS]
    parts = [member, *backends, *gateways]
    if several:
        parts.append(_manager(folder, kinds, backends, next(ports)))
    if haproxy is not None:
        parts.append(_balancer(folder, haproxy, next(ports), gateways))
    return State(parts, dict.fromkeys(names, BACKENDS_MIN))


def _make_authority(folder: Path) -> None:
    """Creates the certificate authority, anew for an unfinished cluster. Raises `CaError` for a foreign one."""
    authority, mark = folder / "ca", folder / UNFINISHED
    if mark.exists():
        shutil.rmtree(authority, ignore_errors=True)
    elif not authority.exists():
        mark.touch()
    create(authority)


def add_backend(folder: Path, state: State, cluster: str) -> Part:
    """Plans one more backend, like the others, among the parts; does not start it. Raises `CaError`, `OSError`."""
    known = state.backends_of(cluster)
    number = max(state.last.get(cluster, 0), *(part.number for part in known), len(known)) + 1
    env = known[-1].env
    model: Model = "independent_hosts" if env.get(_MODEL) == "independent_hosts" else "leader_follower"
    taken = {int(port) for port in re.findall(rb"127\.0\.0\.1:(\d+)", msgspec.json.encode(state))}
    ports = iter([f"{HOST}:{port}" for port in free_ports(_PORTS_OF_BACKEND, besides=taken)])
    kind = _Kind(cluster, env[_COORDINATOR], model, replication_of(state), len(state.clusters) > 1)
    part = _backend(folder, kind, number, ports)
    state.last[cluster] = number
    state.parts.insert(state.parts.index(known[-1]) + 1, part)
    return part


def free_ports(count: int, *, besides: Collection[int] = ()) -> list[int]:
    """`count` different ports that are free now, and not in `besides`. Raises `OSError`."""
    found: list[int] = []
    with ExitStack() as held:
        for port in random.sample(_PORTS, len(_PORTS)):
            if len(found) == count:
                return found
            if port in besides:
                continue
            probe = held.enter_context(socket.socket())
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            found.append(port)
    raise OSError(f"cannot find {count} free ports on {HOST}")


def _etcd(folder: Path, program: str, client: str, peer: str) -> Part:
    url, peer_url = f"http://{client}", f"http://{peer}"
    argv = [program, "--name", "etcd", "--data-dir", str(folder / "etcd")]
    argv += ["--listen-client-urls", url, "--advertise-client-urls", url]
    argv += ["--listen-peer-urls", peer_url, "--initial-advertise-peer-urls", peer_url]
    argv += ["--initial-cluster", f"etcd={peer_url}", "--logger", "zap", "--log-level", "error"]
    argv += ["--experimental-watch-progress-notify-interval", "1s"]
    return Part("etcd", "etcd", client, f"{url}/health", argv, {}, _log(folder, "etcd"))


def _pushq(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "gateway", *arguments]


def _certified(folder: Path, name: str, prefix: str) -> dict[str, str]:
    pair: Pair = issue(folder / "ca", [name, HOST], days=90)
    files = {"CERT": pair.certificate, "KEY": pair.key, "CA": folder / "ca" / CA_CERTIFICATE}
    return {f"{prefix}__TLS_{what}": str(file) for what, file in files.items()}


def _backend(folder: Path, kind: _Kind, number: int, ports: Iterator[str]) -> Part:
    is_home = kind.cluster == HOME
    name = f"backend{number}" if is_home else f"{kind.cluster}-backend{number}"
    http = next(ports)
    env = {
        "PUSHQ_DATA": str(folder / name if is_home else folder / kind.cluster / name),
        "PUSHQ_NODE__NAME": name,
        "PUSHQ_NODE__ZONE": f"zone-{(number - 1) % _ZONES + 1}",
        "PUSHQ_NODE__LISTEN": next(ports),
        "PUSHQ_NODE__HTTP": http,
        _SERVICE: next(ports),
        _COORDINATOR: kind.coordinator,
        _MODEL: kind.model,
        _REPLICATION: kind.replication,
        "PUSHQ_CLUSTER__LANES": str(BACKENDS_MIN),
        "PUSHQ_CLUSTER__SHARDS": str(BACKENDS_MIN),
        "PUSHQ_STORAGE__BALLAST_BYTES": str(BALLAST_BYTES),
        **_certified(folder, name, "PUSHQ_NODE"),
    }
    if kind.evens_out:
        env["PUSHQ_CLUSTER__REBALANCE_AFTER_S"] = str(EVEN_OUT_AFTER_SECONDS)
    argv, log = _pushq("backend"), _log(folder, name)
    return Part(
        "backend", name, env[_SERVICE], f"http://{http}/health", argv, env, log, cluster=kind.cluster, number=number
    )


def _store(folder: Path, name: str, kinds: Sequence[_Kind], backends: Sequence[Part]) -> dict[str, str]:
    """The settings `store.*` of a process that uses the backends of all clusters."""
    services = {kind.cluster: [part.address for part in backends if part.cluster == kind.cluster] for kind in kinds}
    further = [
        {"name": kind.cluster, "backends": services[kind.cluster], "coordinator": kind.coordinator}
        for kind in kinds
        if kind.cluster != HOME
    ]
    env = {"PUSHQ_STORE__BACKENDS": ",".join(services[HOME]), **_certified(folder, name, "PUSHQ_STORE")}
    return env | ({"PUSHQ_STORE__CLUSTERS": json.dumps(further)} if further else {})


def _gateway(folder: Path, name: str, kinds: Sequence[_Kind], backends: Sequence[Part], http: str) -> Part:
    env = {
        "PUSHQ_DATA": str(folder / name),
        "PUSHQ_HTTP__LISTEN": http,
        "PUSHQ_HTTP__PROXY_PROTOCOL": "true",
        "PUSHQ_HTTP__TRUSTED_PROXIES": BALANCER_SOURCE,
        _COORDINATOR: kinds[0].coordinator,
        "PUSHQ_STORAGE__BALLAST_BYTES": str(BALLAST_BYTES),
        **_store(folder, name, kinds, backends),
    }
    return Part("gateway", name, http, f"http://{http}/readyz", _pushq("serve"), env, _log(folder, name))


def _manager(folder: Path, kinds: Sequence[_Kind], backends: Sequence[Part], http: str) -> Part:
    """Its intervals are short, so that its work can be watched; the provisioner is `pushq dev-cluster provision`."""
    provisioner = _pushq("dev-cluster", "provision", "--directory", str(folder))
    env = {
        "PUSHQ_MANAGER__NAME": "manager",
        "PUSHQ_MANAGER__LISTEN": http,
        "PUSHQ_MANAGER__LOOK_S": str(MANAGER_LOOK_SECONDS),
        "PUSHQ_MANAGER__PROVISIONER": shlex.join(provisioner),
        "PUSHQ_MANAGER__NODES_MIN": str(BACKENDS_MIN),
        "PUSHQ_MANAGER__NODES_MAX": str(BACKENDS_MAX),
        "PUSHQ_MANAGER__GROW_AFTER_S": str(GROW_AFTER_SECONDS),
        "PUSHQ_MANAGER__SHRINK_AFTER_S": str(SHRINK_AFTER_SECONDS),
        "PUSHQ_MANAGER__PAUSE_S": str(PAUSE_SECONDS),
        **_store(folder, "manager", kinds, backends),
    }
    return Part("manager", "manager", http, f"http://{http}/health", _pushq("manager"), env, _log(folder, "manager"))


def _balancer(folder: Path, program: str, public: str, gateways: list[Part]) -> Part:
    file = folder / "haproxy.cfg"
    servers = "\n".join(f"    server {part.name} {part.address}" for part in gateways)
    file.write_text(_HAPROXY.format(public=public, source=BALANCER_SOURCE, servers=servers))
    argv = [program, "-db", "-f", str(file)]
    return Part("haproxy", "haproxy", public, f"http://{public}/readyz", argv, {}, _log(folder, "haproxy"))


def _log(folder: Path, name: str) -> str:
    return str(folder / "logs" / f"{name}.log")


_HAPROXY: Final = """\
# In front of the gateways of this folder, without TLS. For a machine that others reach, start from deploy/haproxy.
global
    log stderr format raw local0 notice
    hard-stop-after 10s

defaults
    mode http
    log global
    option http-no-delay
    option abortonclose
    option redispatch
    timeout connect 5s
    timeout client 75s
    timeout server 75s
    timeout http-request 10s
    timeout client-fin 10s
    timeout tunnel 1h

frontend public
    bind {public}
    http-request set-var(txn.path) path,url_dec
    acl push hdr(Upgrade) -i websocket
    acl push var(txn.path) -m end /events
    use_backend console if {{ var(txn.path) -m beg /console }}
    use_backend push if push
    default_backend requests

backend console
    balance roundrobin
    timeout server 1h
    stick-table type string len 64 size 10k expire 8h
    stick on req.cook(pushq_console)
    stick store-response res.cook(pushq_console)
    option httpchk GET /lbz
    http-check disable-on-404
    source {source}
    default-server send-proxy-v2 check check-send-proxy inter 1s fall 2 rise 1 on-marked-down shutdown-sessions
{servers}

backend push
    balance leastconn
    timeout server 1h
    option httpchk GET /lbz
    http-check disable-on-404
    source {source}
    default-server send-proxy-v2 check check-send-proxy inter 1s fall 2 rise 1 on-marked-down shutdown-sessions
{servers}

backend requests
    balance roundrobin
    option httpchk GET /lbz
    http-check disable-on-404
    source {source}
    default-server send-proxy-v2 check check-send-proxy inter 1s fall 2 rise 1
{servers}
"""
