"""Requests of several gateways by minute, added up: each says what it counted, and says it again when it has more."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

Minutes = dict[int, dict[str, tuple[int, int]]]
"""Requests, and those that were not good enough, by minute and rule."""

MINUTES_KEPT: Final = 10
"""A gateway speaks of the last few."""


class Tallies:
    """What each gateway said last of each minute."""

    def __init__(self) -> None:
        self._said: dict[str, Minutes] = {}

    def take(self, gateway: str, minutes: Minutes) -> None:
        """A later word on a minute counts; what it does not speak of any more stays."""
        if minutes:
            said = self._said.setdefault(gateway, {})
            said.update(minutes)
            newest = max(minutes)  # what it said of later ones was by a clock that has been set since
            self._said[gateway] = {
                minute: one for minute, one in said.items() if newest - MINUTES_KEPT < minute <= newest
            }

    def totals(self, minute: int, rules: Iterable[str]) -> dict[str, tuple[int, int]]:
        """Of all gateways together, by rule."""
        found: dict[str, tuple[int, int]] = {}
        for rule in rules:
            counts = [minutes[minute].get(rule, (0, 0)) for minutes in self._said.values() if minute in minutes]
            found[rule] = sum(total for total, _ in counts), sum(bad for _, bad in counts)
        return found

    def forget_before(self, minute: int) -> None:
        """Gateways that are gone since then."""
        self._said = {gateway: minutes for gateway, minutes in self._said.items() if max(minutes) >= minute}
