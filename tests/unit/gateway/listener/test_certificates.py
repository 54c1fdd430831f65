"""Certificates that are read anew: what is taken in the place of a good one, and what is not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.listener.certificates import CertificateError, Certificates, Files
from tests.support.patience import eventually
from tests.support.tls import Authority

pytestmark = pytest.mark.anyio


async def test_a_certificate_that_has_expired_does_not_take_the_place_of_one_that_has_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be the backup of the last one. What there is at the start is taken, and told: somebody may be without any
    other."""
    authority = Authority(tmp_path)
    pair, shorter = authority.issue(days=30), authority.issue("shorter", days=1)
    files = Files(pair.certificate, pair.key, None)
    certificates = Certificates(files)
    before_s = certificates.expires_s
    pair.certificate.write_bytes(shorter.certificate.read_bytes())
    pair.key.write_bytes(shorter.key.read_bytes())
    with monkeypatch.context() as patched, capture_logs() as logs:
        patched.setattr("gateway.listener.certificates.time.time", lambda: before_s - 1)
        certificates._reload()
    assert [(one["event"], "has expired" in one["error"]) for one in logs] == [
        ("new certificate rejected, the old one stays in use", True)
    ]
    assert (certificates.expires_s, certificates.reloads, certificates.refusals) == (before_s, 0, 1)
    certificates._reload()
    assert (certificates.reloads, certificates.expires_s < before_s) == (1, True)


async def test_a_pair_that_could_not_be_read_is_taken_as_soon_as_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where it was written first, and given to our user then: that changes nothing of what is in it."""
    monkeypatch.setattr("gateway.listener.certificates.CERTIFICATE_LOOK_SECONDS", 0.01)
    authority = Authority(tmp_path)
    pair, longer = authority.issue(days=30), authority.issue("longer", days=60)
    certificates = Certificates(Files(pair.certificate, pair.key, None))
    before_s, may_read = certificates.expires_s, False

    def check(files: Files) -> None:
        if not may_read:
            raise CertificateError(f"{files.key} cannot be read: Permission denied")

    monkeypatch.setattr("gateway.listener.certificates.check_readable", check)
    watching = asyncio.create_task(certificates.watch())
    pair.certificate.write_bytes(longer.certificate.read_bytes())
    pair.key.write_bytes(longer.key.read_bytes())
    with capture_logs() as logs:
        await eventually(lambda: certificates.refusals > 0)
        may_read = True
        await eventually(lambda: certificates.expires_s > before_s)
    assert [one["event"] for one in logs] == [
        "new certificate rejected, the old one stays in use",
        "certificate loaded",
    ]
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
