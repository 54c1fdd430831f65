"""How many refused acts become rows of the audit."""

from __future__ import annotations

from gateway.limits import REFUSED_ACTS_PER_MINUTE_MAX, REFUSED_PRINCIPALS_MAX
from gateway.refused_acts import RefusedActs

MINUTE_MS = 60_000


def test_a_principal_has_so_many_a_minute_and_takes_none_of_others() -> None:
    acts = RefusedActs()
    written = [acts.is_written("loud", 10 * MINUTE_MS + n) for n in range(REFUSED_ACTS_PER_MINUTE_MAX + 3)]
    assert written == [True] * REFUSED_ACTS_PER_MINUTE_MAX + [False] * 3
    assert acts.is_written("quiet", 10 * MINUTE_MS + 100)
    assert acts.is_written("loud", 11 * MINUTE_MS)


def test_so_many_principals_are_told_apart() -> None:
    acts = RefusedActs()
    assert all(acts.is_written(f"p{n}", 0) for n in range(REFUSED_PRINCIPALS_MAX))
    assert not acts.is_written("one more", 0) and acts.is_written("p1", 1)
    assert acts.is_written("one more", MINUTE_MS)
