"""Which real tests `make test` leaves to `make test-long`: the table `tests/long.toml`, with what the gate has instead.

A test is long when it tells, at the price of many, what a shorter one tells too: another transport, more rounds, a
second kind of cluster. What is the only proof of a promise is not long; it becomes shorter.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Set
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).parent.parent / "long.toml"


class Long(NamedTuple):
    """Tests that only the long run has."""

    test: str
    """The id of one, of all forms of one, or the path of their file; from `tests/` on."""
    instead: str
    """The test, or the file of tests, that the gate has of the same promise."""


class BadTable(ValueError):
    """The table is not as it must be; the text says which entry and why."""


def read_long(file: Path = FILE) -> list[Long]:
    """The entries of the table: `[[long]]` with `test` and `instead` each."""
    found = []
    for number, entry in enumerate(tomllib.loads(file.read_text()).get("long", []), 1):
        if set(entry) != {*Long._fields} or not all(str(value).strip() for value in entry.values()):
            raise BadTable(f"{file.name}: entry {number} needs exactly {', '.join(Long._fields)}, none of them empty")
        found.append(Long(**entry))
    named = {one.test for one in found}
    for one in found:
        if is_long(one.instead, named):
            raise BadTable(f"{file.name}: {one.test} has {one.instead} instead, which is long itself")
    return found


def is_long(test: str, named: Set[str]) -> bool:
    """Whether the gate leaves out the test of that id. `named`: the tests of all entries."""
    return not named.isdisjoint(names_of(test))


def names_of(test: str) -> list[str]:
    """What an entry may call a test: its id, with parameters and without, and all that it is in."""
    return [test, *(test[: end.start()] for end in re.finditer(r"\[|::", test))]
