"""How etcd is reached: certificates, passwords, several addresses, and servers that must not be used."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from backend_store.cluster.coordinator import UnsupportedServer
from backend_store.cluster.core.values import NEVER, Delete, Put, Transaction, absent
from backend_store.cluster.etcd import members
from backend_store.cluster.etcd.driver import EtcdConfig, open_etcd
from backend_store.model import Forbidden, InvalidRequest, StorageFull, Unauthenticated, Unavailable
from backend_store.wire.tls import RenewedTls
from gateway.clusters.etcd_access import EtcdAccess, etcd_config
from gateway.config.addresses import EtcdAt, parse_etcd
from gateway.listener.certificates import OwnCertificates, watched
from tests.support.coordinators import find, over_etcd, put
from tests.support.etcd import Etcd
from tests.support.patience import eventually
from tests.support.server import free_port
from tests.support.tls import Authority

pytestmark = pytest.mark.anyio


async def test_over_tls_both_sides_show_a_certificate(tmp_path: Path) -> None:
    authority, strangers = Authority(tmp_path / "authority"), Authority(tmp_path / "strangers")
    server, client = authority.issue("etcd"), authority.issue("node")
    flags = ["--cert-file", str(server.certificate), "--key-file", str(server.key)]
    flags += ["--client-cert-auth", "--trusted-ca-file", str(authority.certificate)]
    with Etcd(tmp_path, scheme="https", tls=authority.context(client), flags=flags) as etcd:
        coordinator = await open_etcd(EtcdConfig(etcd.endpoints, tls=authority.context(client)))
        try:
            at = await put(coordinator, b"k", b"sealed")
            async with aclosing(coordinator.watch(b"k", after=at)) as watch:
                last = await put(coordinator, b"k")
                assert (await asyncio.wait_for(anext(watch), 20)).revision == last
        finally:
            await coordinator.close()
        for context in (authority.context(), strangers.context(client)):
            with pytest.raises(Unavailable):
                await open_etcd(EtcdConfig(etcd.endpoints, tls=context))


async def test_a_new_certificate_is_shown_to_an_etcd_that_trusts_no_old_one(tmp_path: Path) -> None:
    authority, next_one = Authority(tmp_path / "authority"), Authority(tmp_path / "next")
    files = authority.issue("etcd"), authority.issue("node")
    flags = ["--cert-file", str(files[0].certificate), "--key-file", str(files[0].key)]
    flags += ["--client-cert-auth", "--trusted-ca-file", str(authority.certificate)]
    operator, own = RenewedTls(authority.context(files[1])), OwnCertificates()
    access = EtcdAccess(str(authority.certificate), str(files[1].certificate), str(files[1].key))
    with Etcd(tmp_path, scheme="https", tls=operator, flags=flags) as etcd:
        coordinator = await open_etcd(etcd_config(EtcdAt(etcd.endpoints), access, own))
        try:
            async with watched(own):
                await put(coordinator, b"k", b"before")
                etcd.members[0].kill()
                for old, new in zip(files, (next_one.issue("etcd"), next_one.issue("node")), strict=True):
                    shutil.copy(new.certificate, old.certificate)
                    shutil.copy(new.key, old.key)
                shutil.copy(next_one.certificate, authority.certificate)
                operator.give(next_one.context(files[1]))
                os.kill(os.getpid(), signal.SIGHUP)
                etcd.members[0].start()
                await asyncio.to_thread(etcd.wait_ready)

                async def is_shown() -> bool:
                    try:
                        return bool(await put(coordinator, b"k", b"after"))
                    except Unavailable:
                        return False

                await eventually(is_shown, "etcd lets us in")
        finally:
            await coordinator.close()


async def test_a_user_with_a_password_gets_new_tokens_by_itself(tmp_path: Path) -> None:
    with Etcd(tmp_path, flags=["--bcrypt-cost", "4"]) as etcd:
        etcd.demand_passwords("pushq", "secret", prefix=b"ours/")
        config = EtcdConfig(etcd.endpoints, user="pushq", password="secret", namespace=b"ours/")
        assert "secret" not in repr(config)
        coordinator, another = await open_etcd(config), await open_etcd(config)
        try:
            await put(another, b"before")
            session = await coordinator.open_session(20)
            start = await put(coordinator, b"k", b"", session.id)
            async with aclosing(coordinator.watch(b"k", after=start)) as watch:
                # No token is worth anything then: those of requests, of the session and of the watch.
                etcd.revoke_tokens("pushq", "secret")
                etcd.members[0].kill()
                etcd.members[0].start()
                etcd.wait_ready()
                last = await put(coordinator, b"k")
                assert (await asyncio.wait_for(anext(watch), 20)).revision == last
            await put(another, b"after")
            confirmed_at = session.confirmed_at

            async def is_kept() -> bool:
                return session.confirmed_at > confirmed_at

            await eventually(is_kept)
        finally:
            await coordinator.close()
            await another.close()

        wrong = await open_etcd(EtcdConfig(etcd.endpoints, user="pushq", password="wrong"))
        with pytest.raises(Unauthenticated, match="authentication failed"):
            await put(wrong, b"k")
        await wrong.close()
        nobody = await open_etcd(EtcdConfig(etcd.endpoints))
        with pytest.raises(Unauthenticated, match="etcd requires a user and a password"):
            await put(nobody, b"k")
        await nobody.close()
        elsewhere = await open_etcd(EtcdConfig(etcd.endpoints, user="pushq", password="secret", namespace=b"theirs/"))
        with pytest.raises(Forbidden):
            await put(elsewhere, b"k")
        async with aclosing(elsewhere.watch(b"k", after=NEVER)) as watch:
            with pytest.raises(Forbidden):
                await asyncio.wait_for(anext(watch), 20)
        await elsewhere.close()


async def test_an_etcd_without_room_says_so_and_still_lets_go_of_records(tmp_path: Path) -> None:
    with Etcd(tmp_path, flags=["--quota-backend-bytes", "1000000"]) as etcd:
        async with over_etcd(*etcd.endpoints) as coordinator:

            async def is_full() -> bool:
                try:
                    await put(coordinator, b"k", bytes(200_000))
                except StorageFull:
                    return True
                return False

            await eventually(is_full)
            record = await find(coordinator, b"k")
            assert record is not None
            refused = Transaction((absent(b"k"),), (), (Put(b"k", b""),))
            with pytest.raises(StorageFull):
                await coordinator.transact(refused)
            assert await find(coordinator, b"k") == record
            await coordinator.transact(Transaction(then=(Delete(b"k"),)))
            assert await find(coordinator, b"k") is None


async def test_others_may_use_the_same_etcd_and_are_not_seen(etcd: Etcd) -> None:
    async with over_etcd(*etcd.endpoints, namespace=b"pushq/") as coordinator:
        etcd.put(b"k", b"theirs")
        etcd.put(b"pushq0", b"theirs")
        at = await put(coordinator, b"k", b"ours")
        async with aclosing(coordinator.watch(b"", after=at)) as watch:
            etcd.put(b"k", b"theirs again")
            last = await put(coordinator, b"l")
            heard = await asyncio.wait_for(anext(watch), 20)
            while not heard.events:
                heard = await asyncio.wait_for(anext(watch), 20)
        assert (heard.revision, [event.key for event in heard.events]) == (last, [b"l"])
        assert [(record.key, record.value) for record in (await coordinator.read(b"")).records] == [
            (b"k", b"ours"),
            (b"l", b""),
        ]


async def test_clusters_with_a_namespace_each_share_an_etcd_and_nothing_in_it(etcd: Etcd) -> None:
    address = etcd.endpoints[0].replace("http", "etcd")
    names = ["", "/eu", "/eu-west", "/eu.west"]
    configs = [etcd_config(parse_etcd(address + name), EtcdAccess(), OwnCertificates()) for name in names]
    clusters = [await open_etcd(config) for config in configs]
    try:
        sessions = [await cluster.open_session(60) for cluster in clusters]
        for name, cluster, session in zip(names, clusters, sessions, strict=True):
            made = Transaction((absent(b"node"),), (Put(b"node", name.encode(), session.id),))
            assert (await cluster.transact(made)).succeeded, f"{name} finds its own key free"
        eu, west = clusters[1:3]
        async with aclosing(eu.watch(b"", after=(await eu.read(b"")).revision)) as watch:
            await west.transact(Transaction(then=(Delete(b"node"),)))
            await sessions[3].close()
            last = await put(eu, b"own")
            heard = await asyncio.wait_for(anext(watch), 20)
            while not heard.events:
                heard = await asyncio.wait_for(anext(watch), 20)
        assert (heard.revision, [event.key for event in heard.events]) == (last, [b"own"])
        kept = await find(clusters[0], b"node")
        assert kept is not None and kept.value == b""
        found = [[(record.key, record.value) for record in (await one.read(b"")).records] for one in clusters[1:]]
        assert found == [[(b"node", b"/eu"), (b"own", b"")], [], []]
    finally:
        for cluster in clusters:
            await cluster.close()


async def test_a_quiet_watch_is_told_how_far_it_is(etcd: Etcd) -> None:
    async with over_etcd(*etcd.endpoints, namespace=b"quiet/") as coordinator:
        start = await put(coordinator, b"k")
        last = await put(coordinator, b"elsewhere")
        async with aclosing(coordinator.watch(b"k", after=start)) as watch:
            notice = await asyncio.wait_for(anext(watch), 20)
    assert notice.events == () and notice.revision >= last


async def test_an_address_where_nobody_listens_is_passed_over(etcd: Etcd) -> None:
    async with over_etcd(f"http://127.0.0.1:{free_port()}", *etcd.endpoints, namespace=b"over/") as coordinator:
        await put(coordinator, b"k", b"v")
        record = await find(coordinator, b"k")
        assert record is not None and record.value == b"v"


async def test_a_member_of_another_cluster_is_never_used(
    etcd: Etcd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "ETCD_REQUEST_SECONDS_MAX", 1.0)
    with Etcd(tmp_path) as another:
        with pytest.raises(UnsupportedServer, match="belongs to cluster"):
            await open_etcd(EtcdConfig([*etcd.endpoints, *another.endpoints]))
        # One that comes to an address that was silent at first is found out as well.
        port = free_port()
        async with over_etcd(*etcd.endpoints, f"http://127.0.0.1:{port}") as coordinator:
            with pytest.raises(UnsupportedServer):
                await coordinator._members.vet(another.endpoints[0])  # type: ignore[attr-defined]


@contextmanager
def answering(body: bytes) -> Iterator[str]:
    """A server that gives this answer. Its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("3.5.0", "can lose its agreement"),
        ("3.5.2", "can lose its agreement"),
        ("3.3.27", "3.4 or a newer version of 3 is needed"),
        ("2.3.8", "3.4 or a newer"),
        ("unknown", "none that is known"),
    ],
)
async def test_a_server_that_must_not_be_used_is_refused_with_the_reason(etcd: Etcd, version: str, said: str) -> None:
    claim = json.dumps({"etcdserver": version, "etcdcluster": "3.5.0"}).encode()
    with answering(claim) as url, pytest.raises(UnsupportedServer, match=said):
        await open_etcd(EtcdConfig([*etcd.endpoints, url]))


@pytest.mark.parametrize("answer", [b"", b"{", b"[]", b"{}", b'{"etcdserver": 5}', b"\x00" * 1000])
async def test_an_answer_that_is_none_makes_a_member_unavailable(answer: bytes) -> None:
    with answering(answer) as url, pytest.raises(Unavailable, match="malformed response"):
        await open_etcd(EtcdConfig([url]))


async def test_an_answer_without_an_end_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "ETCD_ANSWER_BYTES_MAX", 1_000)
    with answering(b" " * 100_000) as url, pytest.raises(members.AnswerTooBig, match="larger than 1000 bytes"):
        await open_etcd(EtcdConfig([url]))


@pytest.mark.parametrize(
    "endpoints", [[], ["127.0.0.1:2379"], ["ftp://h:1"], ["http://u:p@h:1"], ["http://h/v3"], ["http://h:1"] * 17]
)
async def test_addresses_that_are_none_are_refused_by_name(endpoints: list[str]) -> None:
    with pytest.raises(InvalidRequest, match="endpoints") as refused:
        await open_etcd(EtcdConfig(endpoints))
    assert "u:p" not in refused.value.detail
