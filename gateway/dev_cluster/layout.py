"""Which processes a cluster on this machine has, with which arguments: decided once, and the same at each start."""

from __future__ import annotations

import random
import shutil
import socket
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from gateway.dev_ca import CA_CERTIFICATE, Pair, create, issue
from gateway.dev_cluster.limits import BALLAST_BYTES
from gateway.dev_cluster.state import Part, State
from gateway.settings import Model

HOST: Final = "127.0.0.1"
BACKENDS: Final = ("backend1", "backend2", "backend3")
GATEWAYS: Final = ("gateway1", "gateway2")
BALANCER_SOURCE: Final = "127.0.0.2"
"""Where the balancer connects from: the gateways trust its PROXY header, and not every process of the machine."""
_MODEL: Final = "PUSHQ_CLUSTER__MODEL"
_PORTS: Final = range(20_000, 32_000)
"""Below those that the system gives to connections that go out: nobody takes them while a part is down."""
_SEARCHED: Final = ("/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin", "/sbin")


class MissingProgram(Exception):
    """What the machine lacks, and the line that installs it."""


def find_program(name: str) -> str | None:
    """On PATH, or where Debian puts it: an ordinary user's PATH lacks some of those folders."""
    return shutil.which(name) or shutil.which(name, path=":".join(_SEARCHED))


def model_of(state: State) -> Model:
    """As its backends are told."""
    env = state.of("backend")[0].env
    return "independent_hosts" if env.get(_MODEL) == "independent_hosts" else "leader_follower"


def make(folder: Path, model: Model = "leader_follower") -> State:
    """A new cluster: ports, certificates and files below `folder`. Raises `MissingProgram`, `CaError`, `OSError`."""
    etcd, haproxy = find_program("etcd"), find_program("haproxy")
    if etcd is None:
        raise MissingProgram("there is no etcd; install it with: sudo apt-get install -y etcd-server")
    create(folder / "ca")
    (folder / "logs").mkdir(mode=0o700)
    ports = iter([f"{HOST}:{port}" for port in free_ports(16)])
    member = _etcd(folder, etcd, next(ports), next(ports))
    coordinator = f"etcd://{member.address}"
    backends = [_backend(folder, name, coordinator, model, next(ports), next(ports), next(ports)) for name in BACKENDS]
    services = ",".join(part.env["PUSHQ_NODE__SERVICE"] for part in backends)
    gateways = [_gateway(folder, name, coordinator, services, next(ports)) for name in GATEWAYS]
    parts = [member, *backends, *gateways]
    if haproxy is not None:
        parts.append(_balancer(folder, haproxy, next(ports), gateways))
    return State(parts)


def free_ports(count: int) -> list[int]:
    """Different ones, that nobody listens on now. Raises `OSError`."""
    found: list[int] = []
    with ExitStack() as held:
        for port in random.sample(_PORTS, len(_PORTS)):
            if len(found) == count:
                return found
            probe = held.enter_context(socket.socket())
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            found.append(port)
    raise OSError(f"{count} free ports are not to be had on {HOST}")


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


def _backend(folder: Path, name: str, coordinator: str, model: Model, peer: str, http: str, service: str) -> Part:
    env = {
        "PUSHQ_DATA": str(folder / name),
        "PUSHQ_NODE__NAME": name,
        "PUSHQ_NODE__ZONE": f"zone-{name[-1]}",
        "PUSHQ_NODE__LISTEN": peer,
        "PUSHQ_NODE__HTTP": http,
        "PUSHQ_NODE__SERVICE": service,
        "PUSHQ_CLUSTER__COORDINATOR": coordinator,
        _MODEL: model,
        "PUSHQ_CLUSTER__LANES": str(len(BACKENDS)),
        "PUSHQ_CLUSTER__SHARDS": str(len(BACKENDS)),
        "PUSHQ_STORAGE__BALLAST_BYTES": str(BALLAST_BYTES),
        **_certified(folder, name, "PUSHQ_NODE"),
    }
    return Part("backend", name, service, f"http://{http}/health", _pushq("backend"), env, _log(folder, name))


def _gateway(folder: Path, name: str, coordinator: str, services: str, http: str) -> Part:
    env = {
        "PUSHQ_DATA": str(folder / name),
        "PUSHQ_HTTP__LISTEN": http,
        "PUSHQ_HTTP__PROXY_PROTOCOL": "true",
        "PUSHQ_HTTP__TRUSTED_PROXIES": BALANCER_SOURCE,
        "PUSHQ_CLUSTER__COORDINATOR": coordinator,
        "PUSHQ_STORE__BACKENDS": services,
        "PUSHQ_STORAGE__BALLAST_BYTES": str(BALLAST_BYTES),
        **_certified(folder, name, "PUSHQ_STORE"),
    }
    return Part("gateway", name, http, f"http://{http}/readyz", _pushq("serve"), env, _log(folder, name))


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
