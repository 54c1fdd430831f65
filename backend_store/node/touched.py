"""Which partitions something happened to since somebody last looked: who watches thousands looks at those alone.

A partition is touched when a commit of its own lands, when something of it waits for one, and when its clock is set or
goes off. So whoever takes the touched ones again and again misses nothing but for the moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

Thing = TypeVar("Thing")


class Touched(Generic[Thing]):
    """One for a node. Each listener has a set of its own."""

    def __init__(self, waiting: Callable[[], Iterable[Thing]]) -> None:
        """`waiting`: those of which something is to be committed. They are touched, and will be again."""
        self._waiting = waiting
        self._ears: list[set[Thing]] = []

    def listen(self) -> Callable[[], set[Thing]]:
        """What gives the things touched since it was called before; the first time, since now."""
        heard: set[Thing] = set()
        self._ears.append(heard)

        def take() -> set[Thing]:
            found = heard.union(self._waiting())
            heard.clear()
            return found

        return take

    def add(self, thing: Thing) -> None:
        for heard in self._ears:
            heard.add(thing)

    def add_all(self, things: Iterable[Thing]) -> None:
        for heard in self._ears:
            heard.update(things)
