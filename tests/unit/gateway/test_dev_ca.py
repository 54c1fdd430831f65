"""The authority for development, as OpenSSL sees what it makes."""

from __future__ import annotations

import stat
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gateway.dev_ca import CA_CERTIFICATE, CaError, create, issue
from tests.support.prerequisites import require


def openssl(*arguments: str | Path) -> str:
    done = subprocess.run(
        [require("openssl"), *map(str, arguments)], capture_output=True, text=True, check=False, timeout=20
    )
    return done.stdout + done.stderr


def test_openssl_verifies_what_the_authority_signed_for_server_and_client(tmp_path: Path) -> None:
    authority = create(tmp_path / "ca")
    made = issue(tmp_path / "ca", ["queue.example", "*.queue.example", "127.0.0.1", "::1"])
    for purpose in ("sslserver", "sslclient"):
        said = openssl(
            "verify", "-x509_strict", "-purpose", purpose, "-CAfile", authority.certificate, made.certificate
        )
        assert said == f"{made.certificate}: OK\n"
    text = openssl("x509", "-in", made.certificate, "-noout", "-text")
    assert "DNS:queue.example, DNS:*.queue.example, IP Address:127.0.0.1, IP Address:0:0:0:0:0:0:0:1" in text
    assert "prime256v1" in text and "CA:FALSE" in text


def test_every_file_is_for_its_owner_only(tmp_path: Path) -> None:
    create(tmp_path / "ca")
    issue(tmp_path / "ca", ["a.example"], out=tmp_path / "out")
    files = [*(tmp_path / "ca").iterdir(), *(tmp_path / "out").iterdir()]
    assert sorted(file.name for file in files) == ["a.example.crt", "a.example.key", "ca.crt", "ca.key"]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert stat.S_IMODE((tmp_path / "ca").stat().st_mode) == 0o700


def test_a_certificate_never_outlives_its_authority(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    create(tmp_path, now=now - timedelta(days=360))
    made = issue(tmp_path, ["a.example"], days=30, now=now)
    assert openssl("verify", "-CAfile", tmp_path / CA_CERTIFICATE, made.certificate).endswith("OK\n")
    end = openssl("x509", "-in", made.certificate, "-noout", "-enddate")
    assert end == openssl("x509", "-in", tmp_path / CA_CERTIFICATE, "-noout", "-enddate")
    with pytest.raises(CaError, match="has expired"):
        issue(tmp_path, ["a.example"], now=now + timedelta(days=6))


def test_an_authority_is_made_once(tmp_path: Path) -> None:
    made = create(tmp_path)
    before = made.key.read_bytes()
    with pytest.raises(CaError, match="already exists; create the authority in a folder of"):
        create(tmp_path)
    assert made.key.read_bytes() == before


@pytest.mark.parametrize("name", ["", "a b", "a..b", "-a", "a/../b", "*.*.a", "a\n"])
def test_what_is_no_host_gets_no_certificate(tmp_path: Path, name: str) -> None:
    create(tmp_path)
    with pytest.raises(CaError, match="is not a valid host name or address"):
        issue(tmp_path, [name])
    assert sorted(file.name for file in tmp_path.iterdir()) == ["ca.crt", "ca.key"]


def test_without_an_authority_the_command_that_makes_one_is_named(tmp_path: Path) -> None:
    with pytest.raises(CaError, match="pushq ca create"):
        issue(tmp_path, ["a.example"])
