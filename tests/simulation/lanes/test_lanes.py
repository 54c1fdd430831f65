"""Hosts, links and clocks fail, lanes and slots change their owners: what was promised of a queue's lanes holds.

`SIM_SEEDS=2000 pytest tests/simulation/lanes` runs so many worlds, and looks for each mutant from the first of them on;
without it, a few worlds, and for each mutant what is known to find it out. One world alone, as a failure names it:

    SIM_SEED=17 pytest tests/simulation/lanes -k no_world
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.simulation.lanes.checks import Checks
from tests.simulation.lanes.mutants import CORE_MUTANTS, SHELL_MUTANTS, mutated
from tests.simulation.lanes.process import Core, Violation
from tests.simulation.lanes.scenarios import SCENARIOS
from tests.simulation.lanes.world import World
from tests.support import seeds

WORLDS = int(os.environ.get("SIM_SEEDS", "0"))
ONE = os.environ.get("SIM_SEED")
FEW_WORLDS = 15
MUTANT_WORLDS_MAX = 300
"""A mutant that so many worlds do not find out, and no scenario, has survived."""


def test_no_world_breaks_a_promise() -> None:
    counts: Counter[str] = Counter()
    numbers = [int(ONE)] if ONE else seeds.worlds(WORLDS or FEW_WORLDS)
    for seed in numbers:
        checks = _lived(seed)
        counts.update(checks.counts, confirmed=len(checks.confirmed))
    if not ONE and seeds.are_telling(len(numbers)):
        _were_worth_living_in(counts, len(numbers))


def _lived(seed: int, breaks: frozenset[str] = frozenset()) -> Checks:
    try:
        return World(seed, breaks=breaks).run().checks
    except (Violation, AssertionError) as broken:
        again = f"SIM_SEED={seed} pytest tests/simulation/lanes -k no_world"
        raise AssertionError(f"seed {seed}: {broken}\nagain: {again}") from broken


def test_a_broken_promise_says_how_to_see_it_again() -> None:
    with pytest.raises(AssertionError, match="SIM_SEED=9 pytest tests/simulation/lanes -k no_world"):
        _lived(9, frozenset(["confirms an ack before its commit"]))


def _were_worth_living_in(counts: Counter[str], worlds: int) -> None:
    """Lanes change owners, slots move, there is something to lose and something late."""
    assert counts["EpochBegan"] > 8 * worlds and counts["LaneHandedOver"] > 3 * worlds, counts
    assert counts["SlotsOpened"] > 3 * worlds and counts["SlotsReleased"] > 2 * worlds, counts
    assert counts["confirmed"] > 100 * worlds and counts["handed out"] > counts["confirmed"], counts
    assert counts["late"] > worlds and counts["merged"] > 5 * counts["late"], counts


def test_a_seed_is_a_whole_world() -> None:
    """What a seed found can be looked at again."""
    first, again = (World(3).run().checks for _ in range(2))
    assert first.places == again.places and first.counts == again.counts and first.merged == again.merged


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_trouble_told_step_by_step_ends_well(name: str) -> None:
    SCENARIOS[name](Core())


@pytest.mark.parametrize("name", CORE_MUTANTS)
def test_a_protocol_with_one_rule_less_is_found_out(name: str) -> None:
    edit = CORE_MUTANTS[name]
    core = mutated(edit)
    if isinstance(edit.found_by, str):
        with pytest.raises(Violation):
            SCENARIOS[edit.found_by](core)
    else:
        assert _is_found_out(core, frozenset(), edit.found_by), f"{name!r} survives {MUTANT_WORLDS_MAX} worlds"


@pytest.mark.parametrize("name", SHELL_MUTANTS)
def test_a_shell_that_breaks_what_the_cores_ask_is_found_out(name: str) -> None:
    assert _is_found_out(Core(), frozenset([name]), SHELL_MUTANTS[name]), (
        f"{name!r} survives {MUTANT_WORLDS_MAX} worlds"
    )


def _is_found_out(core: Core, breaks: frozenset[str], known: int) -> bool:
    seeds = range(MUTANT_WORLDS_MAX) if WORLDS else [known, *range(MUTANT_WORLDS_MAX)]
    for seed in seeds:
        try:
            World(seed, core, breaks).run()
        except (Violation, AssertionError) as broken:
            print(f"found out by seed {seed}: {str(broken)[:200]}")
            return True
    return False
