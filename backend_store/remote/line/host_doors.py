"""Sends publishes to independent hosts: one line (a door) to each host that has a lane.

Until hosts report which of them have a lane, each configured address counts as one that has. Messages without a slot go
to the open doors in turn (round-robin), and so into the lanes of all hosts; while doors in the gateway's zone are open,
to those alone. Messages of a lane take the same line each time, so that one producer's messages of a key keep their
order. A line whose host is lost moves to the next host with all calls that wait, and back home at a quiet moment. The
line of a host that has lost its lane is given to a host that has got one, or closes when no call waits for it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from itertools import count

import structlog

from backend_store.remote.definitions.directory import DoorDirectory, parsed
from backend_store.remote.limits import DOOR_HOME_SECONDS, LINE_CONNECT_SECONDS_MAX
from backend_store.remote.line.backend_addresses import Addresses, There
from backend_store.remote.line.line import Line
from backend_store.wire.store_frames import (
    DOOR,
    Bits,
    Copies,
    Defined,
    Ended,
    Greeted,
    GroupNews,
    Leases,
    Place,
    Sought,
    Tails,
)

log = structlog.get_logger("pushq.remote")

At = tuple[str, int]


class Doors:
    """See the file's first sentence."""

    def __init__(
        self,
        addresses: Sequence[At],
        gateway: str,
        tls: ssl.SSLContext | None,
        *,
        cluster: str = "",
        zone: str = "",
        learnt: Addresses | None = None,
    ) -> None:
        """`cluster`: key of the hosts' cluster. `zone`: the gateway's; "" prefers none. `learnt`: live hosts as they
        report themselves; None: configured addresses alone."""
        assert addresses, "lanes without a host's door"
        self._named = addresses
        self._zone = zone
        self._open = _opener(gateway, tls, cluster, learnt)
        self._with_lane = _with_lane(learnt.there) if learnt is not None else frozenset()
        """Addresses of hosts that have a lane; empty until a host has reported them."""
        self._doors: list[_Door] = []
        self._in_turn: list[_Door] = []
        """Doors that take messages without a slot; all of them until it is known which hosts have a lane."""
        self.lines: list[Line] = []
        self._by_lane: dict[int, Line] = {}
        self._turn = 0
        self._arrange(sorted(self._with_lane) or addresses)
        self._ending: set[asyncio.Task[None]] = set()
        self._returning = asyncio.get_running_loop().create_task(self._return(), name="doors go home")

    def line_of(self, lane: int | None) -> Line:
        """The line for messages of a lane. `lane`: the messages' home lane; None if any lane may take them."""
        if lane is not None:
            line = self._by_lane.get(lane)
            if line is None:
                line = self._by_lane[lane] = self._in_turn[lane % len(self._in_turn)].line
            return line
        self._turn += 1
        able = self._near() or [door.line for door in self._in_turn if door.line.is_open] or self.lines
        return able[self._turn % len(able)]

    def _near(self) -> list[Line]:
        """The open lines to hosts in this gateway's zone."""
        if not self._zone:
            return []
        return [door.line for door in self._in_turn if door.line.is_open and door.host.zone == self._zone]

    # ------------------------------------------------------------------------------------------- hosts come and go

    def know(self, there: There) -> None:
        """Takes over which hosts are live, and which of them have a lane."""
        found = _with_lane(there)
        if not found or found == self._with_lane:
            return  # while no host has a lane the doors stay as they are
        self._with_lane = found
        log.info("doors of hosts with a lane", hosts=[f"{host}:{port}" for host, port in sorted(found)])
        self._arrange([one.own for one in self._doors if one.own in found] + sorted(found - self._owns))
        self._end_spare()

    @property
    def _owns(self) -> set[At]:
        return {door.own for door in self._doors}

    def _arrange(self, owns: Sequence[At]) -> None:
        """Makes a door for each of `owns`. Doors of other hosts go to new ones, or stay until no call waits."""
        spare = [door for door in self._doors if door.own not in owns]
        moved = []
        for own in owns:
            if own in self._owns:
                continue
            if spare:
                moved.append(door := spare.pop(0))
                door.own = own
            else:
                self._doors.append(self._open(own))
        for door in self._doors:
            at = owns.index(door.own) if door.own in owns else 0
            others = [*owns[at:], *owns[:at], *self._named]
            door.directory.know(list(dict.fromkeys([door.own, *others])))
        for door in moved:
            door.directory.go_home()
            door.line.leave_when_quiet()
        self._in_turn = [door for door in self._doors if door.own in owns]
        self.lines = [door.line for door in self._doors]

    def _end_spare(self) -> None:
        """Closes lines of hosts that have no lane, if no call waits for them. Later messages of their lanes may take
        another line, as all earlier ones are answered."""
        for door in [one for one in self._doors if one not in self._in_turn and not one.line.is_waited_for]:
            self._doors.remove(door)
            self.lines = [one.line for one in self._doors]
            self._by_lane = {lane: line for lane, line in self._by_lane.items() if line is not door.line}
            ending = asyncio.get_running_loop().create_task(door.line.close(), name="a door ends")
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    async def _return(self) -> None:
        """Moves lines back to their own hosts, where those were lost and have come back."""
        while True:
            await asyncio.sleep(DOOR_HOME_SECONDS)
            for door in list(self._in_turn):
                own = door.own
                is_due = door.directory.is_away and door.line.is_open and not door.line.was_refused_at(own)
                if is_due and await _is_there(own) and door.own == own:
                    door.directory.go_home()
                    door.line.leave_when_quiet()
            self._end_spare()

    async def close(self) -> None:
        self._returning.cancel()
        await asyncio.gather(self._returning, return_exceptions=True)
        await asyncio.gather(*(line.close() for line in self.lines), *self._ending)


class _Door:
    """A line, the host that it is or was connected to, and the addresses to try."""

    def __init__(self, own: At, line: Callable[[DoorDirectory, Unheard], Line]) -> None:
        self.own = own
        """Address of its own host."""
        self.host = Unheard()
        self.directory = DoorDirectory([own])
        self.line = line(self.directory, self.host)


def _opener(gateway: str, tls: ssl.SSLContext | None, cluster: str, learnt: Addresses | None) -> Callable[[At], _Door]:
    numbers = count()

    def line(directory: DoorDirectory, host: Unheard) -> Line:
        # Each line has its own name: a host to which several lines have moved must tell them apart.
        name = f"{gateway}-{next(numbers)}"
        return Line(DOOR, directory, host, name, tls, whose="the backends' door", cluster=cluster, addresses=learnt)

    return lambda own: _Door(own, line)


def _with_lane(there: There) -> frozenset[At]:
    return frozenset(at for one in there if one.has_lane and (at := parsed(one.address)) is not None)


async def _is_there(address: tuple[str, int]) -> bool:
    try:
        async with asyncio.timeout(LINE_CONNECT_SECONDS_MAX):
            _, writer = await asyncio.open_connection(*address)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


class Unheard:
    """The owner of a line that only publishes, and so ignores nearly all frames; see `line.Owner`."""

    def __init__(self) -> None:
        self.zone = ""
        """Zone of the backend that the line is or was connected to."""

    def held(self) -> list[tuple[Place, str, Bits]]:
        return []

    def greeted(self, frame: Greeted) -> None:
        self.zone = frame.zone

    def copied(self, copies: list[Copies]) -> None: ...
    def defined(self, frame: Defined, *, is_first: bool) -> None: ...
    def leased(self, frame: Leases) -> None: ...
    def ended(self, frame: Ended) -> None: ...
    def group_news(self, frame: GroupNews) -> None: ...
    def tails(self, frame: Tails) -> None: ...
    def sought(self, frame: Sought) -> None: ...
    def lost(self) -> None: ...
