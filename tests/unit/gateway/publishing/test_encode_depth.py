"""A publish call: bodies are looked through for their depth, and only those that are not too large."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from backend_store.core.reorder.hlc import HybridClock
from backend_store.model import InvalidRequest, MessageTooLarge, QueueConfig
from gateway.publishing import encode
from gateway.publishing.encode import prepare_plain
from gateway.publishing.nesting import TOO_DEEP, too_deep
from tests.unit.gateway.publishing.test_encode import NOW_MS, PLAIN, messages_of, prepared

DEEP = b"[" * 40 + b"]" * 40
SMALL = QueueConfig(max_message_bytes=100)
TOO_LARGE = b'["' + b"[" * 100 + b'"]'


def called(shape: str, config: QueueConfig, body: Any) -> None:
    """A call whose second message has this body, in each way that bodies come."""
    if shape == "plain":
        prepare_plain(config, [b"1", json.dumps(body).encode()], "json", now_ms=NOW_MS, clock=HybridClock())
        return
    others = {"json": {"body": 1}, "mixed": {"body_base64": "AA=="}, "msgpack": {"body": b"[" * 99}}
    prepared(others[shape], {"body": body}, config=config, encoding="msgpack" if shape == "msgpack" else "json")


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Bodies whose depth was asked about."""
    asked: list[bytes] = []

    def spied(bodies: Sequence[bytes]) -> list[int]:
        asked.extend(filter(None, bodies))
        return too_deep(bodies)

    monkeypatch.setattr(encode, "too_deep", spied)
    return asked


@pytest.mark.parametrize("shape", ["plain", "json", "mixed", "msgpack"])
def test_what_is_refused_for_its_size_is_not_looked_through(looked_at: list[bytes], shape: str) -> None:
    with pytest.raises(MessageTooLarge):
        called(shape, SMALL, json.loads(TOO_LARGE))
    assert not [body for body in looked_at if len(body) > 100]


@pytest.mark.parametrize("shape", ["plain", "json", "mixed", "msgpack"])
def test_a_body_that_is_too_deep_is_named_in_every_shape_of_a_call(shape: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        called(shape, PLAIN, json.loads(DEEP))
    assert {e.pointer: e.detail for e in error.value.errors} == {"/messages/1/body": TOO_DEEP}


def test_bytes_may_look_like_anything() -> None:
    found = prepare_plain(PLAIN, [DEEP], "msgpack", now_ms=NOW_MS, clock=HybridClock())
    assert messages_of(found).bodies == [DEEP]
    assert messages_of(prepared({"body": DEEP}, encoding="msgpack")).bodies == [DEEP]
