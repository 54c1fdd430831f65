"""TLS of the listener: every transport, certificates that change while sockets are open, clients that show one."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from cryptography import x509
from websockets.asyncio.client import connect as connect_socket

from push.client import ApiError, connect
from push.client.model import TransportName
from tests.conftest import StartServer
from tests.support.cli import run
from tests.support.environment import without_settings
from tests.support.patience import until
from tests.support.prerequisites import require
from tests.support.server import PushqServer
from tests.support.tls import Authority, settings


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def tls_server(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PushqServer]:
    folder = tmp_path_factory.mktemp("tls")
    with PushqServer(folder / "data", env=settings(authority.issue()), tls=authority.context()) as server:
        yield server


def serial(server: PushqServer, context: ssl.SSLContext) -> int:
    """Which certificate the next handshake is shown."""
    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=5) as raw,
        context.wrap_socket(raw, server_hostname="127.0.0.1") as secured,
    ):
        shown = secured.getpeercert(binary_form=True)
        assert shown is not None
        return x509.load_der_x509_certificate(shown).serial_number


def metric(server: PushqServer, name: str) -> float:
    page = httpx2.get(f"{server.url}/metrics", verify=server.tls or True).text
    return next(float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(name))


# --------------------------------------------------------------------------------------------------- transports


@pytest.mark.anyio
@pytest.mark.parametrize("transport", ["ws", "sse", "poll"])
async def test_a_message_goes_over_tls_by_every_transport(
    tls_server: PushqServer, authority: Authority, transport: TransportName
) -> None:
    queue = f"over-{transport}"
    context = authority.context()
    made = httpx2.put(f"{tls_server.url}/v1/queues/{queue}", headers=tls_server.headers, verify=context)
    assert made.status_code == 201
    assert made.headers["strict-transport-security"].startswith("max-age=")
    async with connect(tls_server.url, tls_server.key, transport=transport, tls=context) as pushq:
        await pushq.publish(queue, "hello")
        async with pushq.subscribe(queue, credit=1) as messages:
            message = await messages.get()
            assert message.body == "hello"
            await message.ack()


def test_the_command_line_trusts_the_file_it_is_given_and_nobody_else(
    tls_server: PushqServer, authority: Authority
) -> None:
    env = without_settings() | {"PUSHQ_URL": tls_server.url, "PUSHQ_KEY": tls_server.key}

    assert run("queue", "list", "--ca", str(authority.certificate), env=env).code == 0
    assert run("queue", "list", env=env | {"PUSHQ_CA_FILE": str(authority.certificate)}).code == 0
    stranger = run("queue", "list", env=env)
    assert stranger.code == 5 and "certificate verify failed" in stranger.err


def test_the_banner_names_the_address_with_https(tls_server: PushqServer) -> None:
    assert f"API   {tls_server.url}/v1" in tls_server.log()


def test_openssl_finds_no_protocol_before_tls_1_2_and_no_cipher_without_forward_secrecy(
    tls_server: PushqServer, authority: Authority
) -> None:
    where = f"127.0.0.1:{tls_server.port}"

    def handshake(*flags: str) -> str:
        done = subprocess.run(
            [require("openssl"), "s_client", "-connect", where, "-CAfile", str(authority.certificate), *flags],
            input="",
            capture_output=True,
            text=True,
            check=False,
            timeout=20,
        )
        return done.stdout + done.stderr

    assert "Verification: OK" in handshake("-tls1_2") and "Verification: OK" in handshake("-tls1_3")
    for flags in (["-tls1_1", "-cipher", "ALL:@SECLEVEL=0"], ["-tls1_2", "-cipher", "AES128-GCM-SHA256"]):
        assert "Cipher is (NONE)" in handshake(*flags)


def test_plain_http_gets_no_answer_from_a_tls_listener(tls_server: PushqServer) -> None:
    with socket.create_connection(("127.0.0.1", tls_server.port), timeout=5) as raw:
        raw.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        try:
            said = raw.recv(4096)
        except ConnectionResetError:
            said = b""
        assert b"HTTP/1.1" not in said


# ------------------------------------------------------------------------------------------------------- change


@pytest.mark.anyio
async def test_a_new_certificate_serves_new_handshakes_and_open_sockets_live_on(
    start_server: StartServer, authority: Authority
) -> None:
    server = start_server(env=settings(authority.issue()), tls=authority.context())
    before = serial(server, authority.context())
    async with connect_socket(server.ws_url, ssl=authority.context()) as socket_, asyncio.timeout(30):
        await socket_.send(json.dumps({"type": "connect", "token": server.key}))
        assert json.loads(await socket_.recv())["type"] == "connected"
        authority.issue()  # writes over the files that the server watches
        until(lambda: serial(server, authority.context()) != before, "the new certificate is shown")
        await socket_.send(json.dumps({"type": "ping", "id": 1}))
        assert json.loads(await socket_.recv()) == {"type": "pong", "id": 1}
    assert metric(server, 'pushq_certificate_reloads_total{outcome="loaded"}') >= 1


def test_a_pair_that_does_not_fit_is_refused_and_the_old_one_stays(
    start_server: StartServer, authority: Authority, tmp_path: Path
) -> None:
    pair = authority.issue("first")
    other = authority.issue("second")
    server = start_server(env=settings(pair), tls=authority.context())
    before = serial(server, authority.context())
    shutil.copy(other.key, pair.key)
    until(lambda: metric(server, 'pushq_certificate_reloads_total{outcome="refused"}') == 1, "it is refused")
    assert serial(server, authority.context()) == before
    assert "new certificate rejected, the old one stays in use" in server.log()
    shutil.copy(other.certificate, pair.certificate)
    until(lambda: serial(server, authority.context()) != before, "the mended pair is shown")


def test_sighup_reads_the_certificate_again_and_ends_nothing(start_server: StartServer, authority: Authority) -> None:
    server = start_server(env=settings(authority.issue()), tls=authority.context())
    os.kill(server.pid, signal.SIGHUP)
    until(lambda: metric(server, 'pushq_certificate_reloads_total{outcome="loaded"}') == 1, "it is read again")
    assert server.is_running()


def test_a_certificate_that_ends_soon_is_told_in_the_log_and_by_its_metric(
    start_server: StartServer, authority: Authority
) -> None:
    server = start_server(env=settings(authority.issue(days=13)), tls=authority.context())
    until(lambda: '"days_left": 12' in server.log(), "there is a warning")
    left_s = metric(server, "pushq_certificate_expiry_timestamp_seconds") - time.time()
    assert 12 * 86400 < left_s <= 13 * 86400


# ------------------------------------------------------------------------------------------------------ clients


@pytest.mark.anyio
async def test_with_a_client_authority_only_its_own_get_in(start_server: StartServer, authority: Authority) -> None:
    own = authority.issue("client")
    env = settings(authority.issue(), client_ca=authority.certificate)
    server = start_server(env=env, tls=authority.context(own))
    async with connect(server.url, server.key, tls=authority.context(own)) as pushq:
        with pytest.raises(ApiError, match="nowhere"):
            await pushq.publish("nowhere", "hello")
    with pytest.raises((httpx2.TransportError, ssl.SSLError)):
        httpx2.get(f"{server.url}/livez", verify=authority.context())
    stranger = Authority(authority.folder.parent / "stranger")
    foreign = stranger.issue("client")
    with pytest.raises((httpx2.TransportError, ssl.SSLError)):
        httpx2.get(f"{server.url}/livez", verify=authority.context(foreign))


# -------------------------------------------------------------------------------------------------------- start


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ("certificate", "do not match"),
        ("key", "do not match"),
        ("missing", "cannot read"),
        ("foreign", "do not match"),
    ],
)
def test_a_server_does_not_start_with_half_a_certificate(
    tmp_path: Path, authority: Authority, broken: str, says: str
) -> None:
    pair = authority.issue("start")
    mine = type(pair)(tmp_path / "a.crt", tmp_path / "a.key")
    shutil.copy(pair.certificate, mine.certificate)
    shutil.copy(authority.issue("other").key if broken == "foreign" else pair.key, mine.key)
    if broken == "missing":
        mine.key.unlink()
    elif broken in ("certificate", "key"):
        getattr(mine, broken).write_text("-----BEGIN NOTHING-----\n")
    server = PushqServer(tmp_path / "data", env=settings(mine))
    server.launch()
    assert server.wait().exit_code == 3
    assert says in server.log() and "Traceback" not in server.log()
    assert not (tmp_path / "data").exists()
