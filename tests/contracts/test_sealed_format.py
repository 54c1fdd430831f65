"""Encrypted messages of every version that was released can be read."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from backend_store.client import PeekFilter
from gateway.encryption.master_keys import FileMasters
from tests.support.sealed_data import opened

DATA = Path(__file__).parents[1] / "data" / "sealed_v1"

pytestmark = pytest.mark.anyio


async def test_version_1_opens_with_its_master_key(tmp_path: Path) -> None:
    shutil.copy(DATA / "data.mdb", tmp_path)
    store, vault = await opened(tmp_path, FileMasters(DATA / "master.key"))
    assert vault.keys == 2 and not vault.unwrapped_by_others()
    first, second, *rest = [one.message for one in (await store.queue("default", "sealed").peek(PeekFilter())).items]
    assert bytes(first["body"]) == b'{"plain":1}' and len(rest) == 3
    _is_full(second)
    dead = (await store.queue("default", "sealed.dead").peek(PeekFilter(state="dead"))).items
    _is_full(dead[0].message)
    assert dead[0].message["dead_letter"]["reason"] == "max_attempts" and len(dead) == 2
    assert vault.counts.failed == 0
    await store.close()


def _is_full(message: dict[str, object]) -> None:
    assert (message["id"], message["key"], message["body_base64"]) == ("mine", "k", "AGJ5dGVz/w==")
    assert (message["content_type"], message["headers"]) == ("image/png", {"a": "b"})
    assert (message["reply_to"], message["correlation_id"]) == ("answers", "c")
