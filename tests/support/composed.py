"""Runs the services of a Compose file without Docker: each on a simulated host, with the name, commands, variables and
certificates from the file. Only `/data` and `/tls` are replaced, by folders of the test.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.environment import SMALL_FOLDERS, without_settings
from tests.support.forked import Forked
from tests.support.hosted import name_server
from tests.support.hosts import Host, wire
from tests.support.patience import PATIENCE_S, until
from tests.support.prerequisites import require

ROOT = Path(__file__).resolve().parents[2]
CERTIFICATES = "certificates"
CLIENT = "client"
LOOK_S = 0.2
DNS = "127.0.0.11"
"""Address of Docker's DNS server in every container."""


class Composed:
    """All services together. They end with the `with` block."""

    def __init__(self, services: Mapping[str, Any], folder: Path) -> None:
        """`services`: as resolved by Compose."""
        self._services = {name: each for name, each in services.items() if "entrypoint" not in each}
        self._once = services[CERTIFICATES]
        self._folder = folder
        self._stack = ExitStack()
        self.hosts: dict[str, Host] = {}
        self._running: dict[str, subprocess.Popen[bytes] | Forked] = {}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._make_certificates()
            addresses = {name: self._address(number, name) for number, name in enumerate([*self._services, CLIENT], 20)}
            switch = stack.enter_context(Host("switch", self._folder))
            for name in addresses:
                self.hosts[name] = stack.enter_context(Host(name, self._folder))
            wire(switch, [(self.hosts[name], f"{address}/24") for name, address in addresses.items()])
            for name in self._services:
                name_server(self.hosts[name], {each: [address] for each, address in addresses.items()}, DNS)
            for name in self._services:
                self._start(name)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stack.close()

    def call(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Runs a command on the client's host."""
        whole = self.hosts[CLIENT].command(*command)
        return subprocess.run(whole, capture_output=True, text=True, check=False, timeout=PATIENCE_S)

    def wait_for(self, name: str, url: str) -> None:
        """Waits until `url` answers 200, as seen from that host."""
        probe = ["curl", "--silent", "--fail", "--output", "/dev/null", "--max-time", "2", url]
        command = self.hosts[name].command(*probe)

        def answers() -> bool:
            for each in [each for each, process in self._running.items() if process.poll() is not None]:
                del self._running[each]  # a container that exited is restarted
                self._start(each)
            return subprocess.run(command, capture_output=True, check=False).returncode == 0

        until(answers, lambda: self.hosts[name].log(name)[-4000:], within_s=2 * PATIENCE_S, look_s=LOOK_S)

    def data(self, name: str) -> Path:
        return self._folder / f"data-{name}"

    def _address(self, number: int, name: str) -> str:
        """The address given in the file, or else the next one of its network."""
        networks = self._services.get(name, {}).get("networks") or {}
        fixed = next((each["ipv4_address"] for each in networks.values() if each), None) if networks else None
        return str(fixed or f"172.30.89.{number}")

    def _make_certificates(self) -> None:
        tls, programs = self._folder / "tls", self._folder / "programs"
        for made in (tls, programs):
            made.mkdir(exist_ok=True)
        pushq = programs / "pushq"
        pushq.write_text(f'#!/bin/sh\nexec {sys.executable} -m gateway "$@"\n')
        pushq.chmod(0o755)
        # Compose escapes a literal dollar sign by doubling it.
        [script] = self._once["command"]
        script = script.replace("$$", "$").replace("/data", str(tls))
        env = without_settings() | {"PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        ran = subprocess.run(
            [*self._once["entrypoint"], script],
            env=env,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        assert ran.returncode == 0, ran.stderr

    def _start(self, name: str) -> None:
        """Starts a service unless it is running, after those it depends on."""
        if name in self._running:
            return
        service = self._services[name]
        for other, how in service.get("depends_on", {}).items():
            if other in self._services:
                self._start(other)
                if how["condition"] == "service_healthy":
                    self.wait_for(other, f"http://{self._services[other]['environment']['PUSHQ_NODE__HTTP']}/lbz")
        self._running[name] = self._process(name, service)

    def _process(self, name: str, service: Mapping[str, Any]) -> subprocess.Popen[bytes] | Forked:
        self.data(name).mkdir(exist_ok=True)

        def here(text: str) -> str:
            return text.replace("/tls/", f"{self._folder}/tls/").replace("/data/", f"{self.data(name)}/")

        words = [here(str(word)) for word in service.get("command", [])]
        env = {key: here(str(value)) for key, value in service.get("environment", {}).items()}
        image = service["image"]
        if image.startswith("pushq:"):
            env = SMALL_FOLDERS | env | {"PUSHQ_DATA": str(self.data(name))}
            return self.hosts[name].start_pushq(name, *words, env=env)
        if "haproxy" in image:
            words = [require("haproxy"), "-db", "-f", str(ROOT / "deploy" / "container" / "haproxy.cfg")]
        else:
            words = [require(words[0]), *words[1:]]
        return self.hosts[name].start(name, *words, env=env)
