"""Admission control for connections: limits their rate, their total, and their number per address. Counts those that
are cut.

A connection beyond a limit is refused before its request is read, because reading and checking requests is the work
that a flood wants to cause.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from backend_store.model import Overloaded
from backend_store.words import counted
from gateway.api.http import problem_answer
from gateway.limits import ADDRESS_TIMES_FREE, CONNECTIONS_PER_SOCKET, UNTOLD_HANDSHAKES_MAX
from gateway.listener.head_limits import Reason
from push.intake import Intake
from throttling.census import network_of
from throttling.pace import FairPace
from throttling.room import Room

_HEAD = b"HTTP/1.1 %d Service Unavailable\r\ncontent-type: %b\r\ncontent-length: %d\r\nretry-after: %d\r\n"
_END = b"connection: close\r\n\r\n"


class AcceptLimit:
    def __init__(
        self,
        intake: Intake,
        *,
        connections_max: int,
        per_address_max: int = 0,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`connections_max`: plain HTTP and WebSockets together. `per_address_max`: likewise; 0 means any number that
        leaves room for others."""
        self.connections_max = connections_max
        self._per_address_max = per_address_max
        self._room = Room(connections_max, times_free=ADDRESS_TIMES_FREE)
        self._told = Room(UNTOLD_HANDSHAKES_MAX)
        self._pace = FairPace(
            rate=intake.accepts_per_s * CONNECTIONS_PER_SOCKET, burst=intake.accepts_burst * CONNECTIONS_PER_SOCKET
        )
        self._intake = intake
        self._clock_ns = clock_ns

    def cut_reader(self) -> None:
        """Counts a connection that ends because its peer does not read its answer."""
        self._intake.readers_cut += 1

    def cut_body(self) -> None:
        """Counts a connection that ends because its peer sends too much of a body that was answered already."""
        self._intake.bodies_cut += 1

    def refuse_head(self, reason: Reason) -> None:
        """Counts a connection that ends because of a request's head."""
        self._intake.heads_refused[reason] += 1

    def enter(self, connections: int, address: str, *, was_greeted: bool = False) -> bytes | None:
        """Returns the refusal to write to a connection; None admits it, until `leave`. `was_greeted`: it came through
        `greet`, which has charged it to the accept rate."""
        if connections > self.connections_max:
            error = self._intake.refusal(
                "connection", "full", f"{counted(self.connections_max, 'connection is', 'connections are')} open"
            )
        elif not self.wait(address):
            error = self._of_address(address)
        elif not was_greeted and not self._pace.admits(self._clock_ns(), network_of(address)):
            self.leave(address)
            error = self._too_fast()
        else:
            return None
        return _answer(error)

    def wait(self, address: str) -> bool:
        """Takes room for one more connection of an address, until `leave`. False if there is none."""
        network = network_of(address)
        if self._per_address_max and self._room.held(network) >= self._per_address_max:
            return False
        return self._room.take(network, 1)

    def greet(self, address: str) -> Callable[[], None] | None:
        """Takes room for a connection while its TLS handshake is under way. Returns the function that gives the room
        back; None refuses it, without room or above the accept rate, because a handshake costs more than all that
        follows. A few connections of an address without room are let through, to be told why after the handshake."""
        network = network_of(address)
        if not self._pace.admits(self._clock_ns(), network):
            self._too_fast()  # counts it
            return None
        if self.wait(address):
            return partial(self._room.give, network, 1)
        if self._told.take(network, 1):
            return partial(self._told.give, network, 1)
        self._of_address(address)  # counts it
        return None

    @property
    def open(self) -> int:
        """Number of connections that have room."""
        return self._room.used

    def leave(self, address: str) -> None:
        self._room.give(network_of(address), 1)

    def _too_fast(self) -> Overloaded:
        return self._intake.refusal("connection", "pace", f"more than {self._pace.rate} new connections per second")

    def _of_address(self, address: str) -> Overloaded:
        network = network_of(address)
        held = counted(self._room.held(network), "connection")
        if self._per_address_max:
            most = f"limits.open_per_address_max is {self._per_address_max}"
        else:
            most = f"the process allows {self.connections_max} and reserves some for other addresses"
        return self._intake.refusal(
            "connection", "address", f"{network} has {held} open; {most}. Close some, or reuse them"
        )


def _answer(error: Overloaded) -> bytes:
    answer = problem_answer(error)
    retry_s = next(int(value) for name, value in answer.headers if name == b"retry-after")
    head = _HEAD % (answer.status, answer.content_type, len(answer.body), retry_s)
    return head + _END + answer.body
