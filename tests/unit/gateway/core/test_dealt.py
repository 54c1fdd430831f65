"""Names that come first where there is room for some."""

from __future__ import annotations

import random

from gateway.core.dealt import SOME, Dealt


def test_no_tenants_names_push_out_those_of_others() -> None:
    dealt = Dealt([("many", f"q{number}") for number in range(9)] + [("few", "b"), ("few", "a"), ("one", "z")])
    assert dealt.first(2) == [("few", "a"), ("many", "q0")]
    assert dealt.first(6) == [("few", "a"), ("few", "b"), ("many", "q0"), ("many", "q1"), ("many", "q2"), ("one", "z")]
    assert len(dealt.first(100)) == 12 and dealt.tenants == ["few", "many", "one"]
    assert dealt.of("many", 2) == [("many", "q0"), ("many", "q1")] and dealt.of("nobody", 2) == []


def test_names_that_come_and_go_stay_in_order() -> None:
    choose, names = random.Random(3), set[tuple[str, str]]()
    dealt = Dealt()
    for round_ in range(30):
        for drawn in choose.sample(range(10_000), choose.choice([1, 5, 3 * SOME])):
            name = choose.choice("abc"), f"q{drawn}"
            if name not in names:
                names.add(name)
                dealt.put(name)
        for name in choose.sample(sorted(names), len(names) // 3 if round_ % 4 else len(names)):
            names.discard(name)
            dealt.remove(name)
        assert dealt.first(10_000) == sorted(names)
        assert {tenant: dealt.count(tenant) for tenant in dealt.tenants} == {
            tenant: sum(whose == tenant for whose, _ in names) for tenant in sorted({whose for whose, _ in names})
        }
