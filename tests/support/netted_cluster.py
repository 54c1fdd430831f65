"""A cluster on simulated hosts: etcd, three backends and two gateways, each role in its own network namespace.

A test can cut any host off from any other, in one direction or both. Packets are lost silently, as the frames go to a
machine that does not exist. The test's own process stays in its network, and reaches a host through a thread that
enters that host's namespace. Programs are started only from the main thread, because they end with the thread that
started them.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar

from gateway.dev_ca import CA_CERTIFICATE, Pair, create, issue
from tests.support.environment import SMALL_FOLDERS
from tests.support.etcd import UNSAFE
from tests.support.hosted import accepts
from tests.support.hosts import Host, end, wire
from tests.support.patience import until
from tests.support.prerequisites import require
from tests.support.server import UNHURRIED

READY_S_MAX: Final = 120.0
WHOLE_S_MAX: Final = 90.0
STOP_S_MAX: Final = 60.0
ADDRESS: Final = "192.0.2.{}"
ETCD: Final = 2
GATEWAYS: Final = 3
BACKENDS: Final = {"a": 11, "b": 12, "c": 13}
NOWHERE: Final = "02:00:00:00:00:01"
"""A hardware address that no host has."""
_CLONE_NEWNET: Final = 0x40000000
_ROOT = Path(__file__).resolve().parents[2]

T = TypeVar("T")
Model = Literal["leader_follower", "independent_hosts"]


def enter(host: Host) -> None:
    """Moves this thread's sockets into the host's network."""
    libc = ctypes.CDLL(None, use_errno=True)
    network = os.open(f"/proc/{host.pid}/ns/net", os.O_RDONLY)
    try:
        if libc.setns(network, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter the network of {host.name}")
    finally:
        os.close(network)


def within(host: Host, what: Callable[[], T]) -> T:
    """Calls `what` as a program on that host would."""

    def run() -> T:
        enter(host)
        return what()

    with ThreadPoolExecutor(1, thread_name_prefix=host.name) as there:
        return there.submit(run).result()


class Program:
    """A program on a host, which can be stopped and restarted."""

    def __init__(self, host: Host, name: str, command: Sequence[str], env: Mapping[str, str], is_up: str) -> None:
        """`is_up`: the `ADDRESS:PORT` on which it listens once it is up."""
        self.host, self.name = host, name
        self._command, self._env, self._is_up = list(command), dict(env), is_up
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} is not running"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def begin(self) -> None:
        assert threading.current_thread() is threading.main_thread(), "it would end with the thread"
        self._process = self.host.start(self.name, *self._command, env=self._env)

    def is_listening(self) -> bool:
        return accepts(self.host, self._is_up)

    def wait_up(self) -> None:
        process = self._process
        assert process is not None
        until(lambda: process.poll() is not None or self.is_listening(), self.tail, within_s=READY_S_MAX)
        assert process.poll() is None, f"{self.name} ended with {process.returncode}: {self.tail()}"

    def start(self) -> None:
        self.begin()
        self.wait_up()

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        if self._process is not None:
            end(self._process)
            self._process = None

    def wait_end(self, what: str, *, within_s: float = STOP_S_MAX) -> int:
        """Waits until it ends by itself; returns its exit code."""
        process = self._process
        assert process is not None
        until(lambda: process.poll() is not None, lambda: f"{self.name} {what}: {self.tail()}", within_s=within_s)
        self._process = None
        return process.returncode

    def tail(self) -> str:
        return f"{self.name}: {self.host.log(self.name)[-3000:]}"


class Backend(Program):
    """`pushq backend` on a host, with its data on a disk of that host if it was given one."""

    def __init__(self, name: str, host: Host, address: str, data: Path, env: Mapping[str, str]) -> None:
        self.address = address
        self.data = data
        command = [sys.executable, "-m", "gateway", "backend"]
        super().__init__(host, name, command, env, f"{address}:8092")

    def health(self) -> dict[str, Any]:
        """Returns {} if it does not answer."""

        def ask() -> dict[str, Any]:
            try:
                with urllib.request.urlopen("http://127.0.0.1:8091/health", timeout=2) as answer:
                    found: dict[str, Any] = json.load(answer)
            except urllib.error.HTTPError as error:
                with error:
                    return dict(json.load(error))
            except (OSError, ValueError):
                return {}
            return found

        return within(self.host, ask) if self.is_running else {}

    def serves(self) -> set[int]:
        return {one["shard"] for one in self.health().get("shards", []) if one["is_serving"]}

    def give_disk(self, mebibytes: int) -> None:
        """Gives it a small disk that only the host sees; once, before the first start."""
        self.data.mkdir()
        self.host.run("mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(self.data))

    @contextlib.contextmanager
    def full_disk(self) -> Iterator[None]:
        """Another program fills its disk, which must be its own."""
        assert self.host.path(str(self.data)).is_mount(), "this would fill the machine's disk"
        other = self.data / "other"
        self.host.run("sh", "-c", f"cat /dev/zero > {other} 2>/dev/null || true")
        try:
            yield
        finally:
            self.host.run("rm", "-f", str(other))

    @contextlib.contextmanager
    def failing_fsync(self) -> Iterator[None]:
        """Makes each fsync of the running process fail."""
        inject = "inject=fdatasync,fsync,msync:error=EIO"
        tracer = subprocess.Popen(
            [require("strace"), "-f", "-qq", "-p", str(self.pid), "-e", "trace=fdatasync,fsync,msync", "-e", inject],
            stderr=subprocess.DEVNULL,
        )
        try:
            yield
        finally:
            tracer.terminate()
            tracer.wait(10)


class Gateway(Program):
    """The server that `Socket` and `http_client` of the other helpers need; to be used on its host."""

    def __init__(self, host: Host, number: int, folder: Path, env: Mapping[str, str]) -> None:
        self.data = folder / f"g{number}"
        listen = f"127.0.0.1:{8080 + number}"
        self.url, self.ws_url = f"http://{listen}", f"ws://{listen}/v1/ws"
        command = [sys.executable, "-m", "gateway", "serve", "--data", str(self.data), "--listen", listen]
        super().__init__(host, f"g{number}", command, env, listen)

    @property
    def key(self) -> str:
        return (self.data / "admin.key").read_text().strip()

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}


class NettedCluster:
    """See the module docstring. It ends with the `with` block."""

    def __init__(
        self,
        folder: Path,
        *,
        shards: int = 2,
        mode: Literal["sync", "async"] = "sync",
        etcd_members: int = 1,
        disk_mebibytes: int = 0,
        model: Model = "leader_follower",
        is_zoned: bool = False,
    ) -> None:
        """`shards`: independent hosts have one lane each instead. `is_zoned`: each backend's host is a zone with its
        own etcd member, instead of `etcd_members` on a separate host. `disk_mebibytes`: size of a separate disk for
        each backend; 0: all share this machine's disk.
        """
        self._folder = folder
        self.shards = len(BACKENDS) if model == "independent_hosts" else shards
        self.model: Model = model
        self.mode = mode
        self._disk_mebibytes = disk_mebibytes
        self._members, self._is_zoned = etcd_members, is_zoned
        self._stack = ExitStack()
        self.etcd: list[Program] = []
        self.backends: list[Backend] = []
        self.gateways: list[Gateway] = []

    def __enter__(self) -> Self:
        create(self._folder / "ca")
        with ExitStack() as stack:
            switch, etcd, clients = (stack.enter_context(Host(n, self._folder)) for n in ("switch", "etcd", "clients"))
            hosts = {name: stack.enter_context(Host(name, self._folder)) for name in BACKENDS}
            places = {etcd: ETCD, clients: GATEWAYS, **{hosts[name]: place for name, place in BACKENDS.items()}}
            self._places = {host: ADDRESS.format(place) for host, place in places.items()}
            wire(switch, [(host, f"{address}/24") for host, address in self._places.items()])
            self.clients, self.etcd_host = clients, etcd
            self.etcd_hosts = list(hosts.values()) if self._is_zoned else [etcd] * self._members
            self._start_etcd()
            self.backends = [self._backend(name, host) for name, host in hosts.items()]
            for backend in self.backends:
                backend.begin()
            for backend in self.backends:
                backend.wait_up()
            self.whole()
            self._start_gateways(clients)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for backend in self.backends:
            if backend.is_running:
                backend.send(signal.SIGCONT)
        self._stack.close()

    # ------------------------------------------------------------------------------------------------------ programs

    def _certified(self, name: str, address: str) -> Pair:
        return issue(self._folder / "ca", [name, address, "localhost", "127.0.0.1"])

    def _start_etcd(self) -> None:
        urls = [
            (f"m{n}", f"https://{address}:{2379 + 100 * n}", f"http://{address}:{2380 + 100 * n}")
            for n, address in enumerate(self._places[host] for host in self.etcd_hosts)
        ]
        peers = ",".join(f"{name}={peer}" for name, _, peer in urls)
        for host, (name, client, peer) in zip(self.etcd_hosts, urls, strict=True):
            pair = self._certified(name, self._places[host])
            command = [require("etcd"), "--name", name, "--data-dir", str(self._folder / f"etcd-{name}")]
            command += ["--listen-client-urls", client, "--advertise-client-urls", client]
            command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", peers]
            command += ["--cert-file", str(pair.certificate), "--key-file", str(pair.key)]
            command += ["--logger", "zap", "--log-level", "error"]
            command += ["--experimental-watch-progress-notify-interval", "1s", *UNSAFE]
            self.etcd.append(Program(host, name, command, {}, client.removeprefix("https://")))
        for member in self.etcd:
            member.begin()
        for member in self.etcd:
            member.wait_up()
        self._coordinator = "etcd://" + ",".join(client.removeprefix("https://") for _, client, _ in urls)

    def _backend(self, name: str, host: Host) -> Backend:
        address, data = self._places[host], self._folder / name
        pair, authority = self._certified(name, address), str(self._folder / "ca" / CA_CERTIFICATE)
        env = SMALL_FOLDERS | {
            "PYTHONPATH": str(_ROOT),
            "PUSHQ_DATA": str(data),
            "PUSHQ_NODE__NAME": name,
            "PUSHQ_NODE__ZONE": f"zone-{name}",
            "PUSHQ_NODE__LISTEN": f"{address}:8090",
            "PUSHQ_NODE__HTTP": "127.0.0.1:8091",
            "PUSHQ_NODE__SERVICE": f"{address}:8092",
            "PUSHQ_NODE__TLS_CERT": str(pair.certificate),
            "PUSHQ_NODE__TLS_KEY": str(pair.key),
            "PUSHQ_NODE__TLS_CA": authority,
            "PUSHQ_CLUSTER__COORDINATOR": self._coordinator,
            "PUSHQ_CLUSTER__ETCD_TLS_CA": authority,
            "PUSHQ_CLUSTER__MODEL": self.model,
            f"PUSHQ_CLUSTER__{'LANES' if self.model == 'independent_hosts' else 'SHARDS'}": str(self.shards),
            "PUSHQ_CLUSTER__ASYNC_SHARDS": "0",
            "PUSHQ_CLUSTER__REPLICATION": self.mode,
        }
        backend = Backend(name, host, address, data, env)
        if self._disk_mebibytes:
            backend.give_disk(self._disk_mebibytes)
        return backend

    def _start_gateways(self, host: Host) -> None:
        address = self._places[host]
        for number in range(2):
            pair = self._certified(f"g{number}", address)
            env = (
                UNHURRIED
                | SMALL_FOLDERS
                | {
                    "PYTHONPATH": str(_ROOT),
                    "PUSHQ_STORE__BACKENDS": ",".join(f"{one.address}:8092" for one in self.backends),
                    "PUSHQ_STORE__TLS_CERT": str(pair.certificate),
                    "PUSHQ_STORE__TLS_KEY": str(pair.key),
                    "PUSHQ_STORE__TLS_CA": str(self._folder / "ca" / CA_CERTIFICATE),
                    "PUSHQ_CLUSTER__COORDINATOR": self._coordinator,
                    "PUSHQ_CLUSTER__ETCD_TLS_CA": str(self._folder / "ca" / CA_CERTIFICATE),
                }
            )
            gateway = Gateway(host, number, self._folder, env)
            self.gateways.append(gateway)
            if number:  # it uses the keys of the first one
                gateway.data.mkdir(mode=0o700)
                for name in ("master.key", "admin.key"):
                    shutil.copy(self.gateways[0].data / name, gateway.data / name)
            gateway.start()

    # ------------------------------------------------------------------------------------------------------- looking

    def leader(self, shard: int) -> Backend:
        """The only backend that serves the shard, once there is one."""
        found: list[Backend] = []

        def one_leads() -> bool:
            found[:] = [one for one in self.backends if shard in one.serves()]
            return len(found) == 1

        until(one_leads, lambda: f"one backend serves shard {shard}: {self.state()}", within_s=WHOLE_S_MAX)
        return found[0]

    def led_twice(self) -> set[int]:
        """Shards that two backends serve; call it while that cannot change."""
        served = [shard for one in self.backends for shard in one.serves()]
        return {shard for shard in served if served.count(shard) > 1}

    def whole(self) -> float:
        """Seconds until every shard is served and all copies are in sync; with independent hosts, each lane at home."""
        return until(self._is_whole, lambda: f"all is whole: {self.state()}", within_s=WHOLE_S_MAX)

    def _is_whole(self) -> bool:
        found = [one.health().get("shards", []) for one in self.backends]
        return all(
            len(shards) == self.shards and all(len(one["in_sync"]) == len(self.backends) for one in shards)
            for shards in found
        ) and self._are_served(found)

    def _are_served(self, found: list[list[dict[str, Any]]]) -> bool:
        served = [
            (one["shard"], one["wanted"][0] == backend.name)
            for backend, shards in zip(self.backends, found, strict=True)
            for one in shards
            if one["is_serving"]
        ]
        are_at_home = self.model == "leader_follower" or all(is_home for _, is_home in served)
        return are_at_home and {shard for shard, _ in served} == set(range(self.shards))

    def state(self) -> str:
        """The status of every backend, and the end of its log."""
        return "\n".join(f"{one.name}: {one.health()}\n{one.tail()}" for one in self.backends)

    # ----------------------------------------------------------------------------------------------------------- cuts

    @contextlib.contextmanager
    def cut(self, *ways: tuple[Host, Host]) -> Iterator[None]:
        """Drops everything that the first host of a pair sends to the second."""
        for sender, receiver in ways:
            how = ("lladdr", NOWHERE, "nud", "permanent", "dev", "eth0")
            sender.run("ip", "neigh", "replace", self._places[receiver], *how)
        try:
            yield
        finally:
            for sender, receiver in ways:
                sender.run("ip", "neigh", "del", self._places[receiver], "dev", "eth0")

    def others(self, backend: Backend) -> list[Backend]:
        return [one for one in self.backends if one is not backend]


def both(one: Host, others: Sequence[Host]) -> list[tuple[Host, Host]]:
    """Both directions between one host and each of the others."""
    return [way for other in others for way in ((one, other), (other, one))]
