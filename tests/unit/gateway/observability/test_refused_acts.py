"""How many refused acts become rows of the audit."""

from __future__ import annotations

from gateway.limits import REFUSED_ACTS_PER_MINUTE_MAX, REFUSED_PRINCIPALS_MAX
from gateway.observability.refused_acts import RefusedActs

MINUTE_MS = 60_000


def test_a_principal_has_so_many_a_minute_and_takes_none_of_others() -> None:
    acts = RefusedActs()
    written = [acts.is_written("t", "loud", 10 * MINUTE_MS + n) for n in range(REFUSED_ACTS_PER_MINUTE_MAX + 3)]
    assert written == [True] * REFUSED_ACTS_PER_MINUTE_MAX + [False] * 3
    assert acts.is_written("t", "quiet", 10 * MINUTE_MS + 100)
    assert acts.is_written("t", "loud", 11 * MINUTE_MS)


def test_so_many_principals_are_told_apart_and_one_tenant_has_no_more_than_half_of_them() -> None:
    """An issuer makes as many as it likes: refused acts of all other tenants were written down no more."""
    acts, half = RefusedActs(), REFUSED_PRINCIPALS_MAX // 2
    assert all(acts.is_written("many", f"p{n}", 0) for n in range(half))
    assert not acts.is_written("many", "one more", 0) and acts.is_written("many", "p1", 1)
    assert acts.is_written("other", "its own", 1)
    assert acts.is_written("many", "one more", MINUTE_MS)
