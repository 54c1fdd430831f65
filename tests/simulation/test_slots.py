"""Partitions grow, shrink and lose what was not on their disks: nothing confirmed is lost, doubled or out of order.

`SIM_SEEDS=2000 pytest tests/simulation/test_slots.py` runs so many worlds, and looks for each mutant from the first of
them on; without it, a few worlds, and for each mutant the one that is known to find it out.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.simulation.slots_checks import Violation
from tests.simulation.slots_clients import run_world
from tests.simulation.slots_mutants import CORE_MUTANTS, SHELL_MUTANTS, mutated
from tests.simulation.slots_process import Core
from tests.simulation.slots_world import World
from tests.support import seeds

WORLDS = int(os.environ.get("SIM_SEEDS", "0"))
FEW_WORLDS = 18
MUTANT_WORLDS_MAX = 300
"""A mutant that so many worlds do not find out has survived."""


def test_no_world_breaks_a_promise() -> None:
    counts: Counter[str] = Counter()
    for seed in seeds.worlds(WORLDS or FEW_WORLDS):
        try:
            checks = run_world(World(seed)).checks
        except (Violation, AssertionError) as broken:
            raise AssertionError(f"seed {seed}: {broken}") from broken
        counts.update(checks.counts, confirmed=len(checks.confirmed))
    # The worlds must be worth living in: slots move, partitions come and go, and there is something to lose.
    worlds = WORLDS or FEW_WORLDS
    if seeds.are_telling(worlds):
        assert counts["SlotsOpened"] > 10 * worlds and counts["SlotsReleased"] > 10 * worlds, counts
        assert counts["retired"] > worlds / 2 and counts["confirmed"] > 100 * worlds, counts


def test_a_seed_is_a_whole_world() -> None:
    """What a seed found can be looked at again."""
    first, again = (run_world(World(3)).checks for _ in range(2))
    assert first.history == again.history and first.counts == again.counts


@pytest.mark.parametrize("name", CORE_MUTANTS)
def test_a_protocol_with_one_rule_less_is_found_out(name: str) -> None:
    edit = CORE_MUTANTS[name]
    assert _is_found_out(mutated(edit), frozenset(), edit.seed), f"{name!r} survives {MUTANT_WORLDS_MAX} worlds"


@pytest.mark.parametrize("name", SHELL_MUTANTS)
def test_a_shell_that_breaks_what_the_core_asks_is_found_out(name: str) -> None:
    assert _is_found_out(Core(), frozenset([name]), SHELL_MUTANTS[name]), (
        f"{name!r} survives {MUTANT_WORLDS_MAX} worlds"
    )


def _is_found_out(core: Core, breaks: frozenset[str], known: int) -> bool:
    seeds = range(MUTANT_WORLDS_MAX) if WORLDS else [known, *range(MUTANT_WORLDS_MAX)]
    for seed in seeds:
        try:
            run_world(World(seed, core, breaks))
        except (Violation, AssertionError) as broken:
            print(f"found out by seed {seed}: {str(broken)[:200]}")
            return True
    return False
