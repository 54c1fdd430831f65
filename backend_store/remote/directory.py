"""Where a shard's leader is."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

Address = tuple[str, int] | Path
"""Host and port; or the socket of a backend of this machine, in a folder that is its user's alone."""


def parsed(address: str | None) -> tuple[str, int] | None:
    """Of what a backend says about another one, `HOST:PORT`; None where that is no address."""
    host, _, port = (address or "").rpartition(":")
    return (host.strip("[]"), int(port)) if host and port.isdigit() else None


class Directory(Protocol):
    def address(self, shard: int) -> Address | None:
        """What to try next; None while nobody is known."""

    def failed(self, shard: int, address: Address, leader: str | None) -> None:
        """The leader was lost, nobody answers, or it leads elsewhere: at `leader`, HOST:PORT, if that one said so."""


class DoorDirectory:
    """Hosts by their addresses, for one door: its own, while that is there, else the next ones in turn."""

    def __init__(self, addresses: Sequence[tuple[str, int]]):
        assert addresses, "a door without a host"
        self._addresses = addresses
        self._at = 0

    @property
    def is_away(self) -> bool:
        return self._at != 0

    def go_home(self) -> None:
        self._at = 0

    def know(self, addresses: Sequence[tuple[str, int]]) -> None:
        """Other hosts from now on, the first of them its own."""
        assert addresses, "a door without a host"
        at = self._addresses[self._at]
        self._addresses, self._at = addresses, addresses.index(at) if at in addresses else 0

    def address(self, shard: int) -> tuple[str, int] | None:
        return self._addresses[self._at]

    def failed(self, shard: int, address: Address, leader: str | None) -> None:
        if address == self._addresses[self._at]:  # and not one that was left for another
            self._at = (self._at + 1) % len(self._addresses)


class FixedDirectory:
    """Backends by their addresses: the last one that led, then the others in turn.

    A backend says who leads as far as it knows. Cut off from the coordinator it names itself, or who led before; so its
    word is followed once, and then it is another one's turn to be asked.

    Where backends have said which of them are there, each of these has a turn in each round, and of the named ones that
    are not among them one alone: they may be gone for good.
    """

    def __init__(self, addresses: list[tuple[str, int]]):
        assert addresses, "a gateway without a backend"
        self._named = addresses
        self._there: list[tuple[str, int]] = []
        self._rounds: dict[int, deque[tuple[str, int]]] = {}
        """Who has a turn in this round still, the one that is asked now first."""
        self._others = 0
        """Turns that went to named backends which are not there."""
        self._turns: dict[int, int] = {}
        self._hints: dict[int, tuple[str, int]] = {}
        """Where to go next, by the word of the one before."""
        self._followed: set[int] = set()
        """Shards that are looked for where somebody sent us."""
        self._silent: dict[int, tuple[Address, int]] = {}
        """Where a shard's leader was lost, or nobody answered: what others still say of that one is old. Up to which
        turn: when each of the others was asked, their word counts again, or one that has no turn was lost for good."""

    def know(self, there: Sequence[tuple[str, int]]) -> None:
        """Those that are there, by their own word."""
        before, self._there = {*self._named, *self._there}, list(there)
        known = {*self._named, *there}
        for left in self._rounds.values():
            others = [one for one in there if one not in before]
            kept = [one for one in left if one in known]
            left.clear()
            left.extend([*kept, *others])

    def address(self, shard: int) -> Address | None:
        hint = self._hints.pop(shard, None)
        if hint is not None:
            self._followed.add(shard)
            return hint
        self._followed.discard(shard)
        return self._round(shard)[0]

    def failed(self, shard: int, address: Address, leader: str | None) -> None:
        if leader is None:
            self._silent[shard] = address, self._turns.get(shard, 0) + len(self._there or self._named)
        followed = shard in self._followed
        if self._round(shard)[0] == address:
            self._round(shard).popleft()
            self._turns[shard] = self._turns.get(shard, 0) + 1
        if not followed:
            named = parsed(leader)
            if named is not None and not self._is_old(shard, address, named):
                self._hints[shard] = named

    def _round(self, shard: int) -> deque[tuple[str, int]]:
        left = self._rounds.setdefault(shard, deque())
        if not left:
            others = [one for one in self._named if one not in self._there]
            if self._there and others:
                self._others += 1
                others = [others[self._others % len(others)]]
            left.extend([*self._there, *others])
        return left

    def _is_old(self, shard: int, asked: Address, named: Address) -> bool:
        silent, until = self._silent.get(shard, (None, 0))
        return named == asked or (named == silent and self._turns.get(shard, 0) < until)


class LocalDirectory:
    """The one backend of this machine, by its socket."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def address(self, shard: int) -> Address | None:
        return self._path

    def failed(self, shard: int, address: Address, leader: str | None) -> None:
        """It is there again when it was started again."""
