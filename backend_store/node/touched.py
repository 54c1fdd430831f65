"""Tracks which partitions changed since a listener last asked, so that watchers of thousands look only at those.

A partition is touched when one of its commits is durable, when it waits for a commit, and when its timer is set or
fires. A listener that asks repeatedly therefore misses nothing for longer than one interval.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

Thing = TypeVar("Thing")


class Touched(Generic[Thing]):
    """One per node. Each listener has its own set."""

    def __init__(self, waiting: Callable[[], Iterable[Thing]]) -> None:
        """`waiting`: partitions that wait for a commit; they count as touched, and are touched again by that commit."""
        self._waiting = waiting
        self._ears: list[set[Thing]] = []

    def listen(self) -> Callable[[], set[Thing]]:
        """Returns a function that gives what was touched since its last call, or since now at its first."""
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
