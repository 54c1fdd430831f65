"""What processes of Pushq show each other is taken anew while they serve: real processes, and authorities that change.

Whoever is started after the change trusts the new authority alone, so that a connection made then is one with the new
certificate.
"""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import httpx2

from gateway.dev_ca import create, issue
from tests.support.backend import Backend
from tests.support.backends import ROLE, Backends
from tests.support.manager import Manager
from tests.support.metadata import MetadataProcess
from tests.support.patience import PATIENCE_S, until
from tests.support.server import PushqServer
from tests.support.tls import Authority

LOADED = "certificate loaded"
LINE = "a line is open"
CONNECTED = "connected to a backend"
REFUSED = "new certificate rejected, the old one stays in use"


class Files:
    """Of one process: its certificate, key and authority, which keep their places."""

    def __init__(self, folder: Path, authority: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.take(authority)

    def take(self, authority: Path) -> None:
        pair = issue(authority, ["127.0.0.1"], out=authority)
        shutil.copy(pair.certificate, self.folder / "cert.pem")
        shutil.copy(pair.key, self.folder / "key.pem")
        shutil.copy(authority / "ca.crt", self.folder / "ca.pem")

    @property
    def files(self) -> dict[str, str]:
        return {name: str(self.folder / f"{name}.pem") for name in ("cert", "key", "ca")}

    def env(self, section: str) -> dict[str, str]:
        return {f"PUSHQ_{section}__TLS_{name.upper()}": file for name, file in self.files.items()}


def renew(authority: Path) -> None:
    """In its folder there is another authority with a certificate for this machine."""
    shutil.rmtree(authority)
    create(authority)
    issue(authority, ["127.0.0.1"])


def publishes(server: PushqServer, key: str = "") -> bool:
    headers = {"Authorization": f"Bearer {key or server.key}", "Pushq-Timeout-Ms": "2000"}
    url = f"{server.url}/v1/queues/orders/messages"
    sent = httpx2.post(url, headers=headers, json={"messages": [{"body": 1}]}, timeout=PATIENCE_S)
    return sent.status_code == 201


def test_a_gateway_shows_its_backend_a_new_certificate_and_keeps_the_old_one_while_that_is_broken(
    tmp_path: Path,
) -> None:
    with Backend(tmp_path) as backend:
        own = Files(tmp_path / "own", tmp_path / "ca")
        with PushqServer(tmp_path / "data", env={**backend.gateway_env, **own.env("STORE")}) as gateway:
            made = httpx2.put(f"{gateway.url}/v1/queues/orders", headers=gateway.headers, json={}, timeout=PATIENCE_S)
            assert made.status_code == 201

            (own.folder / "cert.pem").write_text("no certificate")
            os.kill(gateway.pid, signal.SIGHUP)
            until(lambda: REFUSED in gateway.log(), "the broken file is told")
            backend.kill()
            backend.start()
            until(lambda: publishes(gateway), "it is let in with the old one")

            lines = gateway.log().count(CONNECTED)
            renew(tmp_path / "ca")
            own.take(tmp_path / "ca")
            until(lambda: LOADED in gateway.log(), "the new one is taken, unasked")
            assert publishes(gateway) and gateway.log().count(CONNECTED) == lines
            backend.kill()
            backend.start()
            until(lambda: publishes(gateway), "it is let in with the new one")


def test_a_server_shows_the_metadata_service_a_new_certificate(tmp_path: Path) -> None:
    create(tmp_path / "ca")
    theirs, own = Files(tmp_path / "theirs", tmp_path / "ca"), Files(tmp_path / "own", tmp_path / "ca")
    with MetadataProcess(tmp_path / "meta", tls=theirs.files) as service:
        env = {"PUSHQ_METADATA__URL": service.url, "PUSHQ_METADATA__SECRET_FILE": str(service.secret_file)}
        with PushqServer(tmp_path / "data", env={**env, **own.env("METADATA")}) as server:
            renew(tmp_path / "ca")
            for files in (theirs, own):
                files.take(tmp_path / "ca")
            os.kill(server.pid, signal.SIGHUP)
            until(lambda: LOADED in server.log(), "the new one is taken")
            service.kill()
            service.start()
            headers = {"Authorization": f"Bearer {service.key}"}

            def is_let_in() -> bool:
                made = httpx2.put(f"{server.url}/v1/queues/orders", headers=headers, json={}, timeout=PATIENCE_S)
                return made.status_code in (200, 201)

            until(is_let_in, "it is let in with the new one")


def test_backends_and_a_manager_show_each_other_new_certificates(tmp_path: Path) -> None:
    with Backends(tmp_path, ROLE) as cluster:
        cluster.all_in_sync()
        ways = {**cluster.gateway_env("managers"), "PUSHQ_CLUSTER__COORDINATOR": cluster.coordinator}
        with Manager("m", tmp_path, ways) as manager:
            shutil.rmtree(cluster.authority.folder)
            renewed = Authority(cluster.authority.folder)
            for name in ("a", "b", "c", "managers"):
                renewed.issue(name)
            for one in cluster.all:
                one.send(signal.SIGHUP)
            manager.send(signal.SIGHUP)
            logs = [tmp_path / f"{name}.log" for name in "abcm"]
            until(lambda: all(LOADED in log.read_text() for log in logs), "all have taken theirs")
            connected = manager.log.count(CONNECTED)
            for one in cluster.all:
                log = tmp_path / f"{one.name}.log"
                before = log.read_text().count(LINE)
                one.end()
                one.start()
                until(lambda: log.read_text().count(LINE) == before + 2, "both others have a line to it")  # noqa: B023
                cluster.all_in_sync()
            until(lambda: manager.log.count(CONNECTED) > connected, "the manager is let in")
