"""What the gate draws is a function of the commit: of each test and its seed, not of what a process has loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.seeds import VARIABLE

ROOT = Path(__file__).parents[3]
LOADED = ("backend_store.core.dedupe.dedupe", "backend_store.core.limits", "gateway.limits")
"""Full of constants."""
EXAMPLES = 100
PROBE = f"""
import sys
from hashlib import sha256
from importlib import import_module

for name in sys.argv[1:]:
    import_module(name)

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

gate = settings(derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow])
drawn = []

@settings(gate, max_examples={EXAMPLES})
@given(st.tuples(st.integers(), st.floats(), st.text(), st.binary(), st.sampled_from(["a", "b", "c"])))
def draw(values):
    drawn.append(values)

draw()
print(len(drawn), sha256(repr(drawn).encode()).hexdigest())
"""


def drawn(*modules: str, hash_seed: str = "1") -> str:
    """What a test draws in a process that has loaded these modules."""
    env = {name: value for name, value in os.environ.items() if name != VARIABLE} | {"PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", PROBE, *modules]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    count, digest = done.stdout.split()
    assert int(count) == EXAMPLES
    return digest


def test_same_test_draws_the_same_whatever_is_loaded() -> None:
    assert drawn("tests.conftest") == drawn("tests.conftest", *LOADED, hash_seed="2")


def test_hypothesis_alone_draws_from_what_is_loaded() -> None:
    """Where this fails, nobody needs `draw_alike` any more; where only the other fails, it has come to nothing."""
    assert drawn() != drawn(*LOADED)
