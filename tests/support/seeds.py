"""The seed of tests that draw at random: a constant by default, so that a run of the gate depends only on the commit.

`make explore` runs the same tests with other seeds. A failure names its seed; with that in `TEST_SEED`, exactly the
same is drawn again.
"""

from __future__ import annotations

import os

from hypothesis import settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

GATE_SEED = 1
HASH_VARIABLE = "PYTHONHASHSEED"
"""Python's own variable, which determines the order of sets. It only takes effect in processes started with it."""
VARIABLE = "TEST_SEED"
SEED = int(os.environ.get(VARIABLE, "0")) or GATE_SEED
IS_EXPLORING = SEED != GATE_SEED
AGAIN = f"{VARIABLE}={SEED}"
"""What repeats this run's choices, for failure messages."""
MANY_WORLDS = 100
WORLDS_APART = 1_000_003
"""Distance between the first worlds of adjacent seeds, so that no two searches share a world."""


def worlds(count: int) -> range:
    """The seeds of this many simulated worlds: the first ones in the gate, others elsewhere."""
    first = (SEED - GATE_SEED) * WORLDS_APART
    return range(first, first + count)


def are_telling(count: int) -> bool:
    """Whether this many worlds must between them contain some of everything. Those of the gate are known to, and many
    worlds do as well; a few random ones need not.
    """
    return not IS_EXPLORING or count >= MANY_WORLDS


def is_gate() -> bool:
    """Whether this is the short form, rather than `make explore` or a long form, which have their own profiles."""
    return settings.get_current_profile_name() == "gate"


def examples(in_gate: int, *, exploring: int) -> int:
    """How many examples Hypothesis tries: few in the gate, more in `make explore`; a long form uses its profile."""
    if is_gate():
        return in_gate
    return exploring if settings.get_current_profile_name() == "explore" else settings().max_examples


def draw_alike() -> None:
    """Makes what a test draws depend only on the test and its seed, whatever else runs in its process.

    Hypothesis also draws constants from those of our modules that are loaded, which differ between a test run alone and
    one after other tests. There is no setting to disable this, so a new version of Hypothesis may need another patch;
    `tests/unit/support/test_seeds.py` detects that.
    """
    none = Constants()
    providers._get_local_constants = lambda: none
