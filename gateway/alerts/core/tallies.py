"""Adds up the requests that several gateways counted by minute; a gateway reports a minute again when it has more."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

Minutes = dict[int, dict[str, tuple[int, int]]]
"""By minute and rule: the number of requests, and of those that were not good enough."""

MINUTES_KEPT: Final = 10
"""How many of the last minutes a gateway reports."""


class Tallies:
    """The last report of each gateway about each minute."""

    def __init__(self) -> None:
        self._said: dict[str, Minutes] = {}

    def take(self, gateway: str, minutes: Minutes) -> None:
        """A later report replaces a minute's counts; minutes that a report leaves out stay."""
        if minutes:
            said = self._said.setdefault(gateway, {})
            said.update(minutes)
            newest = max(minutes)  # later minutes came from a clock that has been set since
            self._said[gateway] = {
                minute: one for minute, one in said.items() if newest - MINUTES_KEPT < minute <= newest
            }

    def totals(self, minute: int, rules: Iterable[str]) -> dict[str, tuple[int, int]]:
        """The sums of all gateways, by rule: requests, and those that were not good enough."""
        found: dict[str, tuple[int, int]] = {}
        for rule in rules:
            counts = [minutes[minute].get(rule, (0, 0)) for minutes in self._said.values() if minute in minutes]
            found[rule] = sum(total for total, _ in counts), sum(bad for _, bad in counts)
        return found

    def forget_before(self, minute: int) -> None:
        """Forgets gateways whose last report is about an earlier minute."""
        self._said = {gateway: minutes for gateway, minutes in self._said.items() if max(minutes) >= minute}
