"""Replicas under crashes, cuts, lost disks and stale words: nothing confirmed is lost, doubled or changed.

`SIM_SEEDS=2000 pytest tests/simulation/replication` runs so many worlds of a simulated minute, and looks for each
mutant from the first of them on; without it, a few worlds, and for each mutant the one that is known to find it out. A
world that fails is told again, with its whole story, by `python -m tests.simulation.replication SEED`.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.simulation.replication.checks import Violation
from tests.simulation.replication.mutants import (
    CORE_MUTANTS,
    MOVE_MUTANTS,
    MOVE_SHELL_MUTANTS,
    SHELL_MUTANTS,
    Known,
    mutated,
)
from tests.simulation.replication.world import World, broken_by
from tests.support import seeds

WORLDS = int(os.environ.get("SIM_SEEDS", "0"))
FEW_WORLDS = 6
MUTANT_WORLDS_MAX = 300
"""A mutant that so many worlds do not find out has survived."""


def test_no_world_breaks_a_promise() -> None:
    counts: Counter[str] = Counter()
    for seed in seeds.worlds(WORLDS or FEW_WORLDS):
        try:
            counts.update(World(seed).run().counts)
        except (Violation, AssertionError) as broken:
            raise AssertionError(
                f"seed {seed}: {broken}; see python -m tests.simulation.replication {seed}"
            ) from broken
    # The worlds must be worth living in: leaders change, replicas part and meet again, and there is something to lose.
    worlds = WORLDS or FEW_WORLDS
    if not seeds.are_telling(worlds):
        return
    assert counts["elections"] > 5 * worlds and counts["confirmed"] > 100 * worlds, counts
    assert counts["snapshots"] > worlds / 2 and counts["truncated"] > worlds / 4 and counts["trimmed"] > worlds, counts
    assert counts["duplicates"] > worlds and counts["hand over"] > worlds / 4 and counts["damage found"], counts


def test_no_world_in_which_replicas_move_breaks_a_promise() -> None:
    counts: Counter[str] = Counter()
    worlds = WORLDS or FEW_WORLDS
    for seed in seeds.worlds(worlds):
        try:
            counts.update(World(seed, moves=True).run().counts)
        except (Violation, AssertionError) as broken:
            raise AssertionError(
                f"seed {seed}: {broken}; see python -m tests.simulation.replication {seed} moves"
            ) from broken
    if seeds.are_telling(worlds):
        assert counts["moves"] > 5 * worlds and counts["let go"] > worlds and counts["snapshots"] > worlds, counts


def test_no_world_in_which_followers_take_their_rows_anew_breaks_a_promise() -> None:
    counts: Counter[str] = Counter()
    worlds = WORLDS or FEW_WORLDS // 3
    for seed in seeds.worlds(worlds):
        try:
            counts.update(World(seed, renews=True).run().counts)
        except (Violation, AssertionError) as broken:
            raise AssertionError(
                f"seed {seed}: {broken}; see python -m tests.simulation.replication {seed} renews"
            ) from broken
    if seeds.are_telling(worlds):
        assert counts["renewals"] > 2 * worlds and counts["snapshots"] > 2 * worlds, counts


def test_a_seed_is_a_whole_world() -> None:
    """What a seed found can be looked at again."""
    first, again = (World(3).run() for _ in range(2))
    assert first.counts == again.counts
    assert [story.crcs for story in first.stories.values()] == [story.crcs for story in again.stories.values()]


@pytest.mark.parametrize("name", CORE_MUTANTS)
def test_a_protocol_with_one_rule_less_is_found_out(name: str) -> None:
    with mutated(CORE_MUTANTS[name]):
        assert _is_found_out(CORE_MUTANTS[name].known, frozenset()), f"{name!r} survives {MUTANT_WORLDS_MAX} worlds"


@pytest.mark.parametrize("name", SHELL_MUTANTS)
def test_a_shell_that_breaks_what_the_core_asks_is_found_out(name: str) -> None:
    assert _is_found_out(SHELL_MUTANTS[name], frozenset([name])), f"{name!r} survives {MUTANT_WORLDS_MAX} worlds"


@pytest.mark.parametrize("name", MOVE_MUTANTS)
def test_moves_with_one_rule_less_are_found_out(name: str) -> None:
    with mutated(MOVE_MUTANTS[name]):
        known = MOVE_MUTANTS[name].known
        assert _is_found_out(known, frozenset(), moves=True), f"{name!r} survives {MUTANT_WORLDS_MAX} worlds"


@pytest.mark.parametrize("name", MOVE_SHELL_MUTANTS)
def test_a_shell_that_moves_carelessly_is_found_out(name: str) -> None:
    found = _is_found_out(MOVE_SHELL_MUTANTS[name], frozenset([name]), moves=True)
    assert found, f"{name!r} survives {MUTANT_WORLDS_MAX} worlds"


def _is_found_out(known: Known, breaks: frozenset[str], *, moves: bool = False) -> bool:
    if not isinstance(known, int):
        with pytest.raises(AssertionError):
            known()
        return True
    seeds = range(MUTANT_WORLDS_MAX) if WORLDS else [known, *range(MUTANT_WORLDS_MAX)]
    for seed in seeds:
        broken = broken_by(seed, breaks=breaks, moves=moves)
        if broken is not None:
            print(f"found out by {broken[:200]}")
            return True
    return False
