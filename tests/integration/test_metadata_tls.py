"""A metadata service for other machines: its TLS, who is let in, and whom a server asks first; real processes."""

from __future__ import annotations

import re
import socket
import ssl
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx2
import pytest
from cryptography import x509

from backend_store.metadata.directory.client import DirectoryClient
from backend_store.metadata.remote import RemoteMetadata
from backend_store.model import QueueConfig, Unavailable
from backend_store.wire.tls import mutual_tls
from gateway.dev_ca import Pair, create, issue
from tests.support.cli import run
from tests.support.directory import SECRET, DirectoryHosts
from tests.support.environment import without_settings
from tests.support.etcd import Etcd
from tests.support.metadata import MetadataProcess
from tests.support.patience import PATIENCE_S, eventually, until
from tests.support.server import PushqServer

pytestmark = pytest.mark.anyio


class Authority:
    """A folder with an authority and what it signed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.certificate = create(folder).certificate
        self.pair = self.sign()

    def sign(self) -> Pair:
        return issue(self.folder, ["127.0.0.1"])

    def client(self) -> ssl.SSLContext:
        return mutual_tls(self.pair.certificate, self.pair.key, self.certificate, is_server=False)

    def stranger(self) -> ssl.SSLContext:
        """Who shows no certificate, and believes the service's."""
        return ssl.create_default_context(cafile=str(self.certificate))

    @property
    def files(self) -> dict[str, str]:
        return {"cert": str(self.pair.certificate), "key": str(self.pair.key), "ca": str(self.certificate)}


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


@pytest.fixture
def service(tmp_path: Path, authority: Authority) -> Iterator[MetadataProcess]:
    with MetadataProcess(tmp_path / "meta", tls=authority.files) as process:
        yield process


async def is_let_in(url: str, secret: str, tls: ssl.SSLContext) -> str:
    """Why not; "" where it is."""
    remote = RemoteMetadata(url, secret, tls)
    why = ""

    async def is_known() -> bool:
        nonlocal why
        try:
            await remote.get_tenant("default")
            why = ""
        except Unavailable as error:
            why = error.detail
        return remote.is_connected or "not connected yet" not in why

    try:
        await eventually(is_known)
        return why
    finally:
        await remote.close()


async def test_a_server_takes_its_queues_and_keys_from_a_service_by_tls(
    service: MetadataProcess, authority: Authority, tmp_path: Path
) -> None:
    assert service.url.startswith("wss://")
    env = {
        "PUSHQ_METADATA__URL": service.url,
        "PUSHQ_METADATA__SECRET_FILE": str(service.secret_file),
        **{f"PUSHQ_METADATA__TLS_{what.upper()}": file for what, file in authority.files.items()},
    }
    with PushqServer(tmp_path / "data", env=env) as server:
        headers = {"Authorization": f"Bearer {service.key}"}
        async with httpx2.AsyncClient(base_url=server.url, headers=headers, timeout=20) as http:
            assert (await http.put("/v1/queues/orders", json={})).status_code == 201
            sent = await http.post("/v1/queues/orders/messages", json={"messages": [{"body": 1}]})
            assert sent.status_code == 201


async def test_who_has_no_certificate_of_the_authority_is_shown_how_it_is_and_no_more(
    service: MetadataProcess, authority: Authority, tmp_path: Path
) -> None:
    assert await is_let_in(service.url, service.secret, authority.client()) == ""
    assert "401" in await is_let_in(service.url, service.secret, authority.stranger())
    assert "401" in await is_let_in(service.url, "a guess", authority.client())
    other = Authority(tmp_path / "other")
    foreign = mutual_tls(other.pair.certificate, other.pair.key, authority.certificate, is_server=False)
    assert await is_let_in(service.url, service.secret, foreign)
    assert "certificate verify failed" in await is_let_in(service.url, service.secret, other.client())
    health = service.url.replace("wss", "https", 1) + "/health"
    with urllib.request.urlopen(health, context=authority.stranger(), timeout=PATIENCE_S) as answer:
        assert answer.status == 200
    with pytest.raises(OSError):
        urllib.request.urlopen(health.replace("https", "http", 1), timeout=PATIENCE_S)


def test_a_new_certificate_is_shown_while_the_service_goes_on(service: MetadataProcess, authority: Authority) -> None:
    def serial() -> int:
        with (
            socket.create_connection(("127.0.0.1", service.port), timeout=PATIENCE_S) as plain,
            authority.stranger().wrap_socket(plain, server_hostname="127.0.0.1") as shown,
        ):
            certificate = shown.getpeercert(binary_form=True)
            assert certificate is not None
            return x509.load_der_x509_certificate(certificate).serial_number

    for is_told in (False, True):
        before = serial()
        authority.sign()
        if is_told:
            service.reload()
        until(lambda old=before: serial() != old, lambda: "the old certificate is shown still")


def test_what_serves_other_machines_says_what_it_lacks(tmp_path: Path, authority: Authority) -> None:
    files = [word for what, file in authority.files.items() for word in (f"--tls-{what}", file)]

    def told(*options: str) -> tuple[int, str]:
        ended = run("metadata", "--data", str(tmp_path / "none"), *options, env=without_settings())
        return ended.code, ended.err

    code, said = told("--listen", "0.0.0.0:0")
    assert code == 3 and "--tls-cert, --tls-key and --tls-ca" in said
    code, said = told("--listen", "0.0.0.0:0", "--etcd", "http://127.0.0.1:1", *files)
    assert code == 3 and "--advertise HOST:PORT" in said
    code, said = told(*files[:2])
    assert code == 2 and "must be set together" in said
    code, said = told("--advertise", "meta-1:8081")
    assert code == 2 and "require --etcd" in said
    code, said = told("--listen", "127.0.0.1:0", "--zone", "No Zone")
    assert code == 3 and "--zone" in said
    code, said = told("--listen", "127.0.0.1:0", *files[:4], "--tls-ca", str(tmp_path / "none.crt"))
    assert code == 3 and "none.crt" in said


async def test_hosts_ask_each_other_by_tls_and_a_server_asks_the_one_in_its_zone(
    tmp_path: Path, authority: Authority
) -> None:
    (tmp_path / "etcd").mkdir()
    tls = (authority.pair, authority.certificate)
    zones = ("east", "west", "east")
    with Etcd(tmp_path / "etcd") as etcd, DirectoryHosts(tmp_path, etcd, "ring", zones=zones, tls=tls) as hosts:
        client = DirectoryClient(list(hosts.urls.values()), SECRET, "ring", zone="west", tls=authority.client())
        try:
            assert await client.connected(PATIENCE_S)
            await eventually(partial(has_all, client), "the ring has all three")
            names = [f"q{number:02}" for number in range(20)]
            for name in names:
                await client.create_queue("default", name, QueueConfig())
        finally:
            await client.close()
        before = {name: answered(hosts.urls[name], authority, "get_queue") for name in hosts.names}
        env = {**hosts.env, "PUSHQ_NODE__ZONE": "west"}
        with PushqServer(tmp_path / "gateway", env=env) as gateway:
            headers = {"Authorization": f"Bearer {hosts.key}"}
            async with httpx2.AsyncClient(base_url=gateway.url, headers=headers, timeout=20) as http:
                for name in names:
                    sent = await http.post(f"/v1/queues/{name}/messages", json={"messages": [{"body": 1}]})
                    assert sent.status_code == 201
                asked = {n: answered(hosts.urls[n], authority, "get_queue") - before[n] for n in hosts.names}
                assert asked["h1"] >= len(names), asked
                # The others answered the near host alone, for what they keep of the ring.
                assert handed_on(hosts.urls["h1"], authority) >= asked["h0"] + asked["h2"] > 0, asked
                hosts.kill("h1")
                assert (await http.get("/v1/queues")).status_code == 200


async def has_all(client: DirectoryClient) -> bool:
    return len((await client.get_ring()).urls) == 3


def page(url: str, authority: Authority) -> str:
    url = url.replace("wss", "https", 1) + "/metrics"
    with urllib.request.urlopen(url, context=authority.stranger(), timeout=PATIENCE_S) as answer:
        text: str = answer.read().decode()
        return text


def answered(url: str, authority: Authority, operation: str) -> int:
    pattern = rf'pushq_metadata_requests_total{{[^}}]*operation="{operation}"[^}}]*}} (\d+)'
    return sum(map(int, re.findall(pattern, page(url, authority))))


def handed_on(url: str, authority: Authority) -> int:
    [count] = re.findall(r"^pushq_metadata_handed_on_total(?:{[^}]*})? (\d+)", page(url, authority), re.MULTILINE)
    return int(count)
