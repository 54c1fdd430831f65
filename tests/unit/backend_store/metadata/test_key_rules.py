"""Rules of API keys: what a change may be made from, and who must be left."""

from __future__ import annotations

from typing import Any

import pytest

from backend_store.metadata.key_rules import check_instead, heir
from backend_store.model import ApiKey, Conflict, NotFound


def key(name: str, *scopes: str, **more: Any) -> ApiKey:
    return ApiKey(name, name, "default", scopes or ("operator",), b"", 1, **more)


def test_a_change_needs_the_key_that_it_was_made_from() -> None:
    old, new = key("k"), key("k", previous_until_ms=7)
    check_instead(None, None, new)
    check_instead(new, None, new)
    check_instead(old, old, new)
    check_instead(new, old, new)
    with pytest.raises(NotFound, match="'k'"):
        check_instead(None, old, new)
    with pytest.raises(Conflict, match="has been changed"):
        check_instead(key("k", previous_until_ms=8), old, new)
    with pytest.raises(Conflict, match="already"):
        check_instead(old, None, new)


def test_whoever_is_no_operator_may_go() -> None:
    assert heir([key("a", "admin")], []) is None


def test_an_operator_goes_while_another_lasts_as_long() -> None:
    endless, soon, late = key("e"), key("s", expires_at_ms=5), key("l", expires_at_ms=9)
    assert heir([soon], [key("a", "admin"), late]) == late
    assert heir([soon, late], [soon, endless]) == endless
    for gone, others in (([endless], [soon, late]), ([late], [soon]), ([endless], [key("a", "admin")])):
        with pytest.raises(Conflict, match="last key with the scope operator"):
            heir(gone, others)
