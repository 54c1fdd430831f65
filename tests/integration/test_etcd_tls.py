"""Roles whose etcd asks for TLS, for a certificate, for a password."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.backends import ROLE, Backend
from tests.support.directory import DirectoryHosts
from tests.support.etcd import Etcd
from tests.support.patience import until
from tests.support.prerequisites import require
from tests.support.tls import Authority

ALONE = {"PUSHQ_CLUSTER__REPLICAS": "1", "PUSHQ_CLUSTER__MIN_IN_SYNC": "1"}


@pytest.fixture(autouse=True)
def _needs_etcd() -> None:
    require("etcd")


def test_backend_shows_etcd_its_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    server, client = authority.issue("etcd"), authority.issue("client")
    flags = ["--cert-file", str(server.certificate), "--key-file", str(server.key)]
    flags += ["--client-cert-auth", "--trusted-ca-file", str(authority.certificate)]
    trusts = {"PUSHQ_CLUSTER__ETCD_TLS_CA": str(authority.certificate)}
    own = {"PUSHQ_CLUSTER__ETCD_TLS_CERT": str(client.certificate), "PUSHQ_CLUSTER__ETCD_TLS_KEY": str(client.key)}
    with Etcd(tmp_path, scheme="https", tls=authority.context(client), flags=flags) as etcd:
        stranger = Backend("b", tmp_path, authority, etcd.endpoints[0], ROLE, env={**ALONE, **trusts})
        with pytest.raises(AssertionError, match=r"cluster\.coordinator"):
            stranger.start()
        stranger.end()
        backend = Backend("a", tmp_path, authority, etcd.endpoints[0], ROLE, env={**ALONE, **trusts, **own})
        try:
            backend.start()
            until(lambda: any(shard["is_serving"] for shard in backend.health().get("shards", [])), "it serves")
        finally:
            backend.end()


def test_metadata_role_gives_etcd_its_password(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    server = authority.issue("etcd")
    flags = ["--cert-file", str(server.certificate), "--key-file", str(server.key), "--bcrypt-cost", "4"]
    password = tmp_path / "password"
    password.write_text("secret\n")
    trusts = ["--etcd-tls-ca", str(authority.certificate)]
    with Etcd(tmp_path, scheme="https", tls=authority.context(), flags=flags) as etcd:
        etcd.demand_passwords("pushq", "secret", prefix=b"pushq/")
        with (
            pytest.raises(AssertionError, match="etcd requires a user and a password"),
            DirectoryHosts(tmp_path, etcd, "replicated", count=1, flags=trusts),
        ):
            pass
        user = ["--etcd-user", "pushq", "--etcd-password-file", str(password)]
        with DirectoryHosts(tmp_path, etcd, "replicated", count=1, flags=[*trusts, *user]) as hosts:
            assert hosts.key
