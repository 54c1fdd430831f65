"""Reasons of nacks beside sealed messages: stored sealed, told open, and never in the way."""

from __future__ import annotations

from backend_store.core.leases.nack_reasons import UNREADABLE, moved_history, sealed_reason, told_history, told_reason
from gateway.encryption.cipher import BlockCipher, QueueSeal
from tests.support.sealed import a_definition, a_seal


def with_key(key_id: int, uid: int = 1) -> QueueSeal:
    seal = a_seal(a_definition(uid=uid))
    seal.add(
        BlockCipher(bytes([key_id]) * 32, tenant="default", uid=uid, key_id=key_id, created_at_ms=0, reserved=1_000)
    )
    return seal


def test_a_reason_is_told_as_it_was_said_and_stored_otherwise() -> None:
    seal = with_key(1)
    for said in ("the printer jammed", "", "ü" * 256, "sealed:1:x", "\ud800"):
        stored = sealed_reason(said, seal)
        assert (stored is not None and said not in stored[9:]) or said == ""
        assert told_reason(stored, seal) == said.encode("utf-8", "replace").decode()
    assert sealed_reason("same", seal) != sealed_reason("same", seal)


def test_reasons_from_before_are_told_as_they_are() -> None:
    assert told_reason("the printer jammed", with_key(1)) == "the printer jammed"
    assert told_reason("the printer jammed", None) == "the printer jammed"
    assert told_reason(None, with_key(1)) is None


def test_what_does_not_open_is_told_in_fixed_words() -> None:
    stored = sealed_reason("why", with_key(1))
    assert stored is not None
    changed = stored[:-6] + ("A" if stored[-6] != "A" else "B") + stored[-5:]
    for text, seal in ((stored, None), (stored, with_key(2)), (stored, with_key(1, uid=2)), (changed, with_key(1))):
        assert told_reason(text, seal) == UNREADABLE
    for broken in ("sealed:1:", "sealed:1:!!", "sealed:1:AAAA"):
        assert told_reason(broken, with_key(1)) == UNREADABLE


def test_without_a_key_a_nack_waits_for_nothing() -> None:
    assert sealed_reason("why", a_seal()) is None
    assert sealed_reason("why", None) is None


def test_a_history_goes_along_to_another_queue() -> None:
    one, other = with_key(1), with_key(2, uid=2)
    rows = [[1, 5, "nacked", sealed_reason("why", one)], [2, 6, "expired", None], [3, 7, "nacked", "from before"]]
    moved = moved_history({"reason": "max_attempts", "history": rows}, one, other, is_encrypted=False)
    assert moved["reason"] == "max_attempts"
    told = [[1, 5, "nacked", "why"], [2, 6, "expired", None], [3, 7, "nacked", "from before"]]
    assert told_history(moved["history"], other) == told
    assert [row[3] == "from before" for row in moved["history"]] == [False, False, True]
    sealed = moved_history(moved, other, one, is_encrypted=True)
    assert told_history(sealed["history"], one) == told and sealed["history"][2][3] != "from before"
