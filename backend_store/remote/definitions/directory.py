"""Finds the address to try next for a shard's leader."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

Address = tuple[str, int] | Path
"""Host and port; or the Unix socket of a backend on this machine, in a folder that only its user can enter."""


def parsed(address: str | None) -> tuple[str, int] | None:
    """Parses the `HOST:PORT` that a backend reports of another one; None if it is not an address."""
    host, _, port = (address or "").rpartition(":")
    return (host.strip("[]"), int(port)) if host and port.isdigit() else None


class Directory(Protocol):
    def address(self, shard: int) -> Address | None:
        """The address to try next; None while no backend is known."""

    def failed(self, shard: int, address: Address, leader: str | None) -> None:
        """The connection to `address` was lost or failed, or the backend there does not lead. `leader`: the leader's
        HOST:PORT, if that backend named one."""


class DoorDirectory:
    """The addresses of one door: its own host while that is up, else the other hosts in turn."""

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
        """Replaces the addresses; the first one is the door's own host."""
        assert addresses, "a door without a host"
        at = self._addresses[self._at]
        self._addresses, self._at = addresses, addresses.index(at) if at in addresses else 0

    def address(self, shard: int) -> tuple[str, int] | None:
        return self._addresses[self._at]

    def failed(self, shard: int, address: Address, leader: str | None) -> None:
        if address == self._addresses[self._at]:  # not one that the door has left already
            self._at = (self._at + 1) % len(self._addresses)


class FixedDirectory:
    """Addresses of a cluster's backends: the last one that led, then the others in turn.

    A backend names the leader as far as it knows. A backend cut off from the coordinator names itself, or an earlier
    leader; so a hint is followed once, and then the next backend in turn is asked.

    Once backends have reported which of them are live, each round asks every live one, and only one of the configured
    ones that are not live: those may be gone for good.
    """

    def __init__(self, addresses: list[tuple[str, int]]):
        assert addresses, "a gateway without a backend"
        self._named = addresses
        self._there: list[tuple[str, int]] = []
        self._rounds: dict[int, deque[tuple[str, int]]] = {}
        """By shard, the backends still to be asked in this round; the first one is being asked now."""
        self._others = 0
        """Turns given to configured backends that are not live."""
        self._turns: dict[int, int] = {}
        self._hints: dict[int, tuple[str, int]] = {}
        """By shard, the leader's address as the backend asked last named it."""
        self._followed: set[int] = set()
        """Shards whose current address is such a hint."""
        self._silent: dict[int, tuple[Address, int]] = {}
        """By shard, an address where the leader was lost or did not answer, and the turn up to which hints to it are
        ignored as old. Once every other backend was asked hints to it count again; otherwise an address that gets no
        turn of its own would be lost for good."""

    def know(self, there: Sequence[tuple[str, int]]) -> None:
        """Takes over which backends are live, as they report it."""
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
    """The only backend, on this machine, at its Unix socket."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def address(self, shard: int) -> Address | None:
        return self._path

    def failed(self, shard: int, address: Address, leader: str | None) -> None:
        """Does nothing: the backend answers at the same socket once it is restarted."""
