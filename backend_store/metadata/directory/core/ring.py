"""The ring: which hosts keep which arc. It changes no more than a host that joins or leaves requires.

A name is hashed to a point of the ring, and the point is on one of `ARCS` arcs. Each arc has a first and a second host.
A host that joins takes its even share of first places and of second places, from the hosts that have most; a host that
leaves is succeeded by the second host of each of its arcs. No more moves: with n hosts afterwards a join moves 1/n of
the names, rounded down to whole arcs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec

from backend_store.metadata.directory.limits import ARCS, COPIES, HOSTS_MAX


class Ring(msgspec.Struct, frozen=True):
    """Only ever written over the version before it."""

    version: int
    arcs: tuple[tuple[str, ...], ...]
    """By arc: the names of its hosts, the first one first. Empty without any host."""
    urls: dict[str, str]
    """Host → the address where it listens."""

    def hosts_of(self, arc: int) -> tuple[str, ...]:
        return self.arcs[arc]

    def arcs_of(self, host: str) -> frozenset[int]:
        """All arcs that the host keeps, as first or second."""
        return frozenset(arc for arc, hosts in enumerate(self.arcs) if host in hosts)


NO_RING = Ring(0, ((),) * ARCS, {})


def changed(ring: Ring, urls: Mapping[str, str]) -> Ring:
    """The ring of these hosts, derived from the one before. Returns the same object where nothing changes.

    With more than `HOSTS_MAX` hosts the last by name are left out.
    """
    members = sorted(urls)[:HOSTS_MAX]
    wanted = {name: urls[name] for name in members}
    if wanted == ring.urls:
        return ring
    if not members:
        return Ring(ring.version + 1, NO_RING.arcs, {})
    arcs = [[host for host in hosts if host in wanted] for hosts in ring.arcs]
    for place in range(min(COPIES, len(members))):
        _fill(arcs, place, members)
        _level(arcs, place, members)
    return Ring(ring.version + 1, tuple(tuple(hosts) for hosts in arcs), wanted)


def _fill(arcs: list[list[str]], place: int, members: list[str]) -> None:
    """Gives each arc without a host in this place the least loaded host that it does not have yet."""
    load = _load(arcs, place, members)
    for hosts in arcs:
        if len(hosts) <= place:
            host = min((name for name in members if name not in hosts), key=lambda name: (load[name], name))
            hosts.append(host)
            load[host] += 1


def _level(arcs: list[list[str]], place: int, members: list[str]) -> None:
    """Moves arcs from the most loaded host while another one has at least two fewer."""
    load = _load(arcs, place, members)
    while True:
        most = max(members, key=lambda name: (load[name], name))
        takers = [name for name in sorted(members, key=lambda name: (load[name], name)) if load[most] - load[name] > 1]
        if not _give_one(arcs, place, most, takers, load):
            return


def _give_one(arcs: list[list[str]], place: int, giver: str, takers: list[str], load: Counter[str]) -> bool:
    for taker in takers:
        for hosts in arcs:
            if len(hosts) > place and hosts[place] == giver and taker not in hosts[:place]:
                if taker in hosts:  # it was second here: they swap, and no records have to be read
                    hosts[hosts.index(taker)] = giver
                hosts[place] = taker
                load[giver] -= 1
                load[taker] += 1
                return True
    return False


def _load(arcs: list[list[str]], place: int, members: list[str]) -> Counter[str]:
    load: Counter[str] = Counter(dict.fromkeys(members, 0))
    load.update(hosts[place] for hosts in arcs if len(hosts) > place)
    return load
