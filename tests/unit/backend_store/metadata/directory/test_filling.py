"""What a host of the directory keeps is read until it is there, whatever is in the way meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backend_store.cluster.core.values import Page
from backend_store.metadata.directory.core.names import arc_prefix
from backend_store.metadata.directory.store import DirectoryStore
from backend_store.model import Forbidden, PushqError, Unavailable
from tests.support.coordinators import open_folder
from tests.support.patience import eventually

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("error", [Unavailable("no leader"), Forbidden("permission denied")])
async def test_arcs_that_could_not_be_read_are_read_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: PushqError
) -> None:
    """Also where etcd denied it for a moment: somebody has put its roles right since."""
    host = open_folder(tmp_path)
    coordinator, refusals = host.coordinator, 0
    read = coordinator.read

    async def refuse(prefix: bytes, **options: Any) -> Page:
        nonlocal refusals
        if prefix == arc_prefix(0) and refusals < 2:
            refusals += 1
            raise error
        return await read(prefix, **options)

    monkeypatch.setattr(coordinator, "read", refuse)
    store = await DirectoryStore.open(coordinator)
    await eventually(lambda: store.keeps(0))
    assert refusals == 2
    await store.close()
    await host.close()
