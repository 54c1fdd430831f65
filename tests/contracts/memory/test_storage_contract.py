"""What engines promise, kept by the one in memory: the pure tests that stand on it may believe it."""

from __future__ import annotations

import pytest

from backend_store.storage.memory import MemoryEngine
from tests.contracts.storage_promises import *  # noqa: F403 - the tests
from tests.contracts.storage_promises import Subject


@pytest.fixture
def subject() -> Subject:
    memory = MemoryEngine()
    return Subject(memory, memory.crash)
