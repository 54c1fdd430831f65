"""Which real tests `make test` leaves to `make test-long`: the table `tests/long.toml`, with what the gate has instead.

A test is long when it tells, at the price of many, what a shorter one tells too: another transport, more rounds, a
second kind of cluster. What is the only proof of a promise is not long; it becomes shorter.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).parent.parent / "long.toml"


class Long(NamedTuple):
    """Tests that only the long run has."""

    test: str
    """The id of one, of all forms of one, or the path of their file; from `tests/` on."""
    instead: str
    """The test, or the file of tests, that the gate has of the same promise."""

    def is_of(self, test: str) -> bool:
        return test == self.test or test.startswith((f"{self.test}[", f"{self.test}::"))


class BadTable(ValueError):
    """The table is not as it must be; the text says which entry and why."""


def read_long(file: Path = FILE) -> list[Long]:
    """The entries of the table: `[[long]]` with `test` and `instead` each."""
    found = []
    for number, entry in enumerate(tomllib.loads(file.read_text()).get("long", []), 1):
        if set(entry) != {*Long._fields} or not all(str(value).strip() for value in entry.values()):
            raise BadTable(f"{file.name}: entry {number} needs exactly {', '.join(Long._fields)}, none of them empty")
        found.append(Long(**entry))
    for one in found:
        if any(other.is_of(one.instead) for other in found):
            raise BadTable(f"{file.name}: {one.test} has {one.instead} instead, which is long itself")
    return found


def is_long(test: str, table: Iterable[Long]) -> bool:
    """Whether the gate leaves out the test of that id."""
    return any(one.is_of(test) for one in table)
