"""What the machine needs besides Python packages, and how to install what is missing.

`make` runs this file with the system's Python before anything else is installed, so it imports only the standard
library. As root it installs missing packages; otherwise it prints the command that does, and exits with code 3.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

EXIT_CANNOT_START = 3
# On Debian, an ordinary user's PATH lacks the folders of some programs.
SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


class MissingPrerequisite(AssertionError):
    """A program is missing; the message says which package has it and how to install it."""


class Prerequisite(NamedTuple):
    name: str
    package: str
    purpose: str
    is_present: Callable[[], bool]


def _command(name: str, package: str, purpose: str) -> Prerequisite:
    return Prerequisite(name, package, purpose, lambda: find(name) is not None)


def _can_make_venv() -> bool:
    # Debian packages ensurepip separately; without it `python3 -m venv` fails half-way.
    return importlib.util.find_spec("ensurepip") is not None


VENV = Prerequisite(
    "ensurepip", f"python{sys.version_info.major}.{sys.version_info.minor}-venv", "making .venv", _can_make_venv
)
GROUPS: dict[str, tuple[Prerequisite, ...]] = {
    "run": (VENV,),
    "cluster": (
        _command("etcd", "etcd-server", "the cluster's coordinator"),
        _command("haproxy", "haproxy", "the balancer before the gateways"),
    ),
    "test": (
        VENV,
        _command("chromium-headless-shell", "chromium-headless-shell", "browser tests"),
        _command("curl", "curl", "examples of the documentation"),
        _command("dnsmasq", "dnsmasq-base", "tests of names with several addresses"),
        _command("docker-compose", "docker-compose", "tests of the file for Compose"),
        _command("etcd", "etcd-server", "tests of coordinators"),
        _command("haproxy", "haproxy", "tests of the balancer in front"),
        _command("ip", "iproute2", "tests of several hosts"),
        _command("ss", "iproute2", "tests of several hosts"),
        _command("java", "openjdk-17-jre-headless", "tests of the files that Spark reads"),
        _command("keepalived", "keepalived", "tests of addresses that move"),
        _command("nsenter", "util-linux", "tests of several hosts"),
        _command("openssl", "openssl", "tests of TLS"),
        _command("prometheus", "prometheus", "tests of the dashboards for Grafana"),
        _command("promtool", "prometheus", "tests of the rules for Prometheus"),
        _command("redis-server", "redis-server", "tests of limits that several gateways share"),
        _command("setpriv", "util-linux", "tests of several hosts"),
        _command("strace", "strace", "tests of a failing disk"),
        _command("systemd-analyze", "systemd", "tests of the units for systemd"),
        _command("unshare", "util-linux", "tests of several hosts"),
    ),
}


def find(command: str) -> str | None:
    """The path of a program, or None if the machine does not have it."""
    return shutil.which(command, path=SEARCH_PATH)


def require(command: str) -> str:
    """The path of a program; if it is missing, the test fails with the command that installs it."""
    path = find(command)
    if path is None:
        known = {each.name: each for group in GROUPS.values() for each in group}
        raise MissingPrerequisite(explain([known[command]]))
    return path


def missing(group: str) -> list[Prerequisite]:
    return [each for each in GROUPS[group] if not each.is_present()]


def explain(absent: Sequence[Prerequisite]) -> str:
    parts = ", ".join(f"{each.name} ({each.purpose})" for each in absent)
    packages = " ".join(each.package for each in absent)
    return f"missing: {parts}\ninstall with: sudo apt-get update && sudo apt-get install -y {packages}"


def install(absent: Sequence[Prerequisite]) -> None:
    apt = ["apt-get", "-q", "-y", "-o", "Dpkg::Use-Pty=0"]
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run([*apt, "update"], env=env, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=True)
    packages = [each.package for each in absent]
    subprocess.run(
        [*apt, "install", "--no-install-recommends", *packages],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        check=True,
    )


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1 or arguments[0] not in GROUPS:
        print(f"usage: prerequisites.py {'|'.join(GROUPS)}", file=sys.stderr)
        return 2
    group = arguments[0]
    absent = missing(group)
    if absent and os.geteuid() == 0 and find("apt-get"):
        print(f"installing {' '.join(each.package for each in absent)}", file=sys.stderr)
        try:
            install(absent)
        except subprocess.CalledProcessError as error:
            print(f"apt-get ended with exit code {error.returncode}", file=sys.stderr)
        importlib.invalidate_caches()
        absent = missing(group)
    if absent:
        print(explain(absent), file=sys.stderr)
        return EXIT_CANNOT_START
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
