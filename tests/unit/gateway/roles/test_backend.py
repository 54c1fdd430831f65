"""What a backend is to the other backends of its cluster."""

from __future__ import annotations

from typing import Any

import pytest

from backend_store.remote.line.host_doors import Unheard
from gateway.config.load import load_settings
from gateway.roles.backend import _door

pytestmark = pytest.mark.anyio


async def test_a_host_that_was_started_again_is_somebody_else_to_the_owners_of_lanes() -> None:
    """Calls have numbers, and begin with 1 in each process: a publish was answered with what became of one that the
    process before it had passed on, and was confirmed without being stored."""
    settings = load_settings({}, {"PUSHQ_NODE__NAME": "h1"}).settings
    host: Any = None
    names = []
    for _ in range(2):
        line = _door(settings, host, {}, lambda lane: None, None)._open_line(0, Unheard())
        names.append(line._gateway)
        await line.close()
    assert names[0] != names[1]
    assert all(name.startswith("host-h1") for name in names)
