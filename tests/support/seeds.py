"""Where tests take the seed of what they draw: a constant, so that a run of the gate is a function of the commit alone.

`make explore` runs the same tests from other seeds. What it finds names its seed: with that in `TEST_SEED`, exactly the
same is drawn again.
"""

from __future__ import annotations

import os

from hypothesis import settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

GATE_SEED = 1
HASH_VARIABLE = "PYTHONHASHSEED"
"""Python's own: the order of sets follows it. It takes effect only in processes that are started with it."""
VARIABLE = "TEST_SEED"
SEED = int(os.environ.get(VARIABLE, "0")) or GATE_SEED
IS_EXPLORING = SEED != GATE_SEED
AGAIN = f"{VARIABLE}={SEED}"
"""What repeats this run's choices, for the text of a failure."""
MANY_WORLDS = 100
WORLDS_APART = 1_000_003
"""Between the first worlds of two neighbouring seeds: no two searches live through the same ones."""


def worlds(count: int) -> range:
    """The seeds of so many simulated worlds: the first ones in the gate, as many others elsewhere."""
    first = (SEED - GATE_SEED) * WORLDS_APART
    return range(first, first + count)


def are_telling(count: int) -> bool:
    """Whether so many worlds must hold some of everything between them. The gate's are known to, and so do many; of a
    few that chance chose, that shows nothing.
    """
    return not IS_EXPLORING or count >= MANY_WORLDS


def is_gate() -> bool:
    """Whether the short forms are run: neither `make explore` nor a long form, which have profiles of their own."""
    return settings.get_current_profile_name() == "gate"


def examples(in_gate: int, *, exploring: int) -> int:
    """How many examples Hypothesis tries: some in the gate, more in `make explore`, and in a long form as many as its
    profile says."""
    if is_gate():
        return in_gate
    return exploring if settings.get_current_profile_name() == "explore" else settings().max_examples


def draw_alike() -> None:
    """From here on, what a test draws is of the test and its seed alone, whatever else runs in its process.

    Hypothesis also draws from the constants that stand in our modules as far as they are loaded: others where a test
    runs alone than behind tests that happened to come first. There is no setting for this, so a new version may do it
    in another way; `tests/unit/support/test_seeds.py` notices.
    """
    none = Constants()
    providers._get_local_constants = lambda: none
