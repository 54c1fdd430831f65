"""Two balancers that share an address, a server behind them and a client in front, each on its own simulated host.

The configuration files are those of `deploy/`: each balancer runs HAProxy and keepalived as on a real machine.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

from gateway.dev_ca import issue
from tests.support.hosted import HostedPushq
from tests.support.hosts import Host, end, wire
from tests.support.patience import PATIENCE_S, until
from tests.support.prerequisites import require
from tests.support.tls import Authority

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
VIP = "192.0.2.10"
SERVER = "192.0.2.20"
PORT = 8080
ANSWER_S_MAX = PATIENCE_S
ETC = "/etc/keepalived"


class Balancer:
    """HAProxy and keepalived on one host."""

    def __init__(self, role: str, address: str, folder: Path, pem: Path) -> None:
        """`role`: the config id for keepalived. `pem`: file with certificate and key."""
        self.role = role
        self.address = address
        self.host = Host(role, folder)
        self._pem = pem
        self._haproxy: subprocess.Popen[bytes] | None = None
        self._keepalived: subprocess.Popen[bytes] | None = None

    def start_haproxy(self) -> None:
        env = {
            "PUSHQ_CERT": str(self._pem),
            "PUSHQ_SERVER": f"{SERVER}:{PORT}",
            "PUSHQ_SOURCE": self.address,
        }
        command = [require("haproxy"), "-db", "-f", str(DEPLOY / "haproxy" / "haproxy.cfg")]
        self._haproxy = self.host.start("haproxy", *command, env=env)

    def start_keepalived(self) -> None:
        options = ["--dont-fork", "--log-console", "--log-detail", "--config-id", self.role]
        self._keepalived = self.host.start("keepalived", require("keepalived"), *options)

    def kill_haproxy(self) -> None:
        assert self._haproxy is not None
        end(self._haproxy)

    def kill_keepalived(self) -> None:
        assert self._keepalived is not None
        end(self._keepalived)

    def has_vip(self) -> bool:
        return f" {VIP}/" in self.host.run("ip", "-4", "address", "show", "dev", "eth0")

    def state(self) -> str:
        """The last state reported to `notify.sh`."""
        path = self.host.path("/run/pushq-vip/pushq")
        return path.read_text().strip() if path.exists() else ""

    def log(self) -> str:
        return self.host.log("keepalived")[-4000:]


class Site:
    """All hosts together. Everything ends with the `with` block."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.authority = Authority(folder)
        pair = issue(folder, [VIP])
        pem = folder / "balancer.pem"
        pem.write_bytes(pair.certificate.read_bytes() + pair.key.read_bytes())
        self.switch = Host("switch", folder)
        self.client = Host("client", folder)
        self.behind = Host("server", folder)
        self.primary = Balancer("primary", "192.0.2.11", folder, pem)
        self.secondary = Balancer("secondary", "192.0.2.12", folder, pem)
        trusting = {
            # Whether a session resumes must depend on the moved address, not on how busy this machine is.
            "PUSHQ_RESUME_MS": "60000",
            "PUSHQ_HTTP__PROXY_PROTOCOL": "true",
            "PUSHQ_HTTP__TRUSTED_PROXIES": f"{self.primary.address},{self.secondary.address}",
        }
        self.server = HostedPushq(self.behind, folder / "data", f"{SERVER}:{PORT}", trusting)
        self._entered: list[Host] = []

    @property
    def url(self) -> str:
        return f"https://{VIP}"

    @property
    def env(self) -> dict[str, str]:
        """Environment of a client."""
        return {"PUSHQ_KEY": self.server.key, "PUSHQ_CA_FILE": str(self.authority.certificate), "PUSHQ_URL": self.url}

    @property
    def balancers(self) -> tuple[Balancer, Balancer]:
        return self.primary, self.secondary

    def __enter__(self) -> Self:
        try:
            for host in (self.switch, self.client, self.behind, self.primary.host, self.secondary.host):
                self._entered.append(host.__enter__())
            self._build()
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._leave()

    def _build(self) -> None:
        addresses = [(self.client, "192.0.2.30/24"), (self.behind, f"{SERVER}/24")]
        addresses += [(each.host, f"{each.address}/24") for each in self.balancers]
        wire(self.switch, addresses)
        self.server.start()
        for balancer in self.balancers:
            put_files(balancer.host)
            balancer.start_haproxy()
        for balancer in self.balancers:
            # The current holder keeps the address, which is the secondary if the primary's HAProxy started later.
            balancer.start_keepalived()
            self.wait_for_vip(self.primary, ANSWER_S_MAX)
        until(self._answers, lambda: self.primary.host.log("haproxy"), within_s=ANSWER_S_MAX)

    def wait_for_vip(self, balancer: Balancer, seconds_max: float) -> float:
        """Waits until `balancer` alone has the address; returns the seconds that took."""
        others = [each for each in self.balancers if each is not balancer]
        return until(
            lambda: balancer.has_vip() and not any(each.has_vip() for each in others),
            lambda: "\n".join(f"{each.role}: vip={each.has_vip()}\n{each.log()}" for each in self.balancers),
            within_s=seconds_max,
        )

    def _answers(self) -> bool:
        command = ["curl", "--silent", "--cacert", str(self.authority.certificate), "--max-time", "1"]
        command += ["--write-out", "%{http_code}", "--output", "/dev/null", f"{self.url}/lbz"]
        ran = subprocess.run(self.client.command(*command), capture_output=True, text=True, check=False)
        return ran.stdout == "200"

    def _leave(self) -> None:
        for host in reversed(self._entered):
            host.__exit__(None, None, None)


def put_files(host: Host) -> None:
    """Files that keepalived expects on a machine."""
    host.run("mkdir", "-p", ETC)
    host.run("mount", "-t", "tmpfs", "tmpfs", ETC)
    # keepalived ignores a configuration file that is executable.
    for name, mode in (("keepalived.conf", "644"), ("notify.sh", "755")):
        host.run("install", "-m", mode, str(DEPLOY / "keepalived" / name), f"{ETC}/{name}")


def mistakes(host: Host, role: str, config: Path, out: Path) -> str:
    """keepalived's complaints about a file; empty if it is valid. Its exit code is a signal's in either case."""
    command = [require("keepalived"), "--config-id", role, f"--config-test={out}", "-f", str(config)]
    subprocess.run(
        host.command(*command),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=20,
        start_new_session=True,  # the signal that ends it goes to the whole process group
    )
    return out.read_text()
