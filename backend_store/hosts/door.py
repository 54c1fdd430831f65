"""A host's door: the entrance where gateways bring publishes of any queue, which routes each to the lane where it
belongs.

A publish without a slot goes into this host's lane, one with a slot to the slot's home lane: `routing` decides. A lane
of this process takes it at once. To another lane's owner it is forwarded, and answered when that owner has answered,
which is after its replication. Nothing is stored here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import structlog

from backend_store.core.host_lanes.routing import AppendTo, ForwardTo, Refused, Route, Send, Standing, route
from backend_store.core.host_lanes.table import LaneTable
from backend_store.core.partitions.slots import SLOTS, UNKEYED
from backend_store.model import InvalidRequest, PushqError, Unavailable
from backend_store.remote.definitions.directory import Address, parsed
from backend_store.remote.line.host_doors import Unheard
from backend_store.remote.line.line import Call, Line
from backend_store.remote.queues.queue import is_known_again
from backend_store.service.serving import Link, StoreService
from backend_store.service.visitor import publish_in
from backend_store.tracing import TRACE, carried
from backend_store.wire.store_frames import (
    NOT_LEADER,
    STORE_VERSION,
    Asks,
    Defined,
    Greeted,
    Greeting,
    Placed,
    Publish,
    Publishes,
    Results,
    Settles,
    Turned,
    Wants,
    Wrong,
    blocks_of_sent,
    pack,
    raw,
    to_bits,
    wrong,
)

log = structlog.get_logger("pushq.door")

DOOR_FINISH_SECONDS_MAX: Final = 2.0
"""How long a host that ends waits for the answers to what gateways brought."""
LOOK_SECONDS: Final = 0.25
OUT_OF_REACH_SECONDS: Final = 7.5
"""Longer than a lost lane stays without an owner: a call that still waits then is on a host that is cut off from the
owner."""
SHUT_OUT_SECONDS: Final = 1.0
"""The same for a host whose own lane another one took while it served, which happens because no host followed it."""
_TURNED: Final = wrong(PushqError("this host is about to end", code=NOT_LEADER))

Answer = Callable[[Placed | PushqError], None]
OpenLine = Callable[[int, Unheard], Line]
"""Opens the connection to a lane's owner."""


class Door:
    """The door of one host. `table` returns the lane table as this host knows it now; None while it does not."""

    def __init__(
        self,
        host: str,
        table: Callable[[], LaneTable | None],
        alive: Callable[[], Mapping[Any, Any]],
        services: Mapping[int, StoreService],
        open_line: OpenLine,
        *,
        lanes: int,
        zone: str = "",
    ):
        self.passed_on = 0
        """Publishes that were forwarded to another host."""
        self.lanes = lanes
        self.zone = zone
        self.has_led = False
        """Whether its own lane was served here."""
        self._is_ending = self._is_cut_off = False
        self._beyond: list[int] = []
        """Lanes whose owners cannot be reached from here."""
        self._waiting: dict[int, tuple[int | None, float]] = {}
        """By lane, the oldest call that waits for the lane's owner, and since when it is the oldest."""
        self._host = host
        self._table = table
        self._alive = alive
        self._services = services
        self._open_line = open_line
        self._lines: dict[int, Line] = {}
        self._guests: dict[str, DoorGuest] = {}
        self._turn = 0

    # ---------------------------------------------------------------------------------------- connecting and leaving

    def arrive(self, greeting: Greeting, link: Link) -> tuple[DoorGuest, Greeted]:
        if (before := self._guests.get(greeting.gateway)) is not None:
            before.departed()  # the gateway came back on another connection
        guest = self._guests[greeting.gateway] = DoorGuest(self, link)
        return guest, Greeted(STORE_VERSION, self._host, 0, [], (0, 0), self.lanes, self.lanes, zone=self.zone)

    def depart(self, name: str, link: Link) -> None:
        guest = self._guests.get(name)
        if guest is not None and guest.link is link:
            del self._guests[name]
            guest.departed()

    async def watch(self) -> None:
        """Runs as long as the host serves: while the host is cut off, gateways are referred to another door. Calls that
        wait here for a lane's owner go with them, in order."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self._look()
            except Exception:
                # Without the next look gateways would stay at a host that is cut off.
                log.exception("a look at the lanes' owners failed")

    async def _look(self) -> None:
        self.has_led = self.has_led or self._home in self._services
        if any(map(self._is_beyond, self._beyond)):
            return
        if self._beyond:
            self._is_cut_off = False
            self._waiting.clear()
        now = asyncio.get_running_loop().time()
        patience_s = SHUT_OUT_SECONDS if self._is_shut_out() else OUT_OF_REACH_SECONDS
        waits = [lane for lane in self._lines if self._waits(lane, now) > patience_s]
        self._beyond = [lane for lane in waits if self._is_beyond(lane)]
        if self._beyond:
            log.warning("this host is cut off: gateways go to another door", lanes=self._beyond)
            self._is_cut_off = True
            await self._leave(0)

    def _waits(self, lane: int, now: float) -> float:
        """How long one call has waited for the lane's owner, in seconds."""
        oldest = self._lines[lane].waits_with
        if self._waiting.get(lane, (None, now))[0] != oldest:
            self._waiting[lane] = oldest, now
        _, since = self._waiting.setdefault(lane, (oldest, now))
        return now - since if oldest is not None else 0.0

    def _is_shut_out(self) -> bool:
        """Whether this host led its own lane and another one does now."""
        table, home = self._table(), self._home
        owner = table.lanes[home].owner if table is not None and home is not None else None
        return self.has_led and owner is not None and owner.host != self._host

    @property
    def _home(self) -> int | None:
        """This host's own lane, as far as it is known."""
        table = self._table()
        return table.lane_of(self._host) if table is not None else None

    def _is_beyond(self, lane: int) -> bool:
        """Whether other hosts may reach the lane's owner and this host cannot. If this host reaches any host, it is the
        owner that is cut off."""
        table = self._table()
        owner = table.lanes[lane].owner if table is not None else None
        if table is None or owner is None or self._lines[lane].is_open:
            return False
        if owner.host == self._host:
            return lane not in self._services  # it has lost the lane and does not know the new owner
        reached = [n for n, line in self._lines.items() if line.is_open and not table.lanes[n].is_owned_by(self._host)]
        return owner.host in self._alive() and not reached

    async def finish(self) -> None:
        """Refers every gateway to another host's door, and returns when what they brought is answered, or has taken
        `DOOR_FINISH_SECONDS_MAX`."""
        self._is_ending = True
        await self._leave(DOOR_FINISH_SECONDS_MAX)

    @property
    def is_leaving(self) -> bool:
        """Gateways are referred to another door: the host is about to end, or is cut off."""
        return self._is_ending or self._is_cut_off

    async def _leave(self, seconds_max: float) -> None:
        """Waits up to `seconds_max` for calls to be answered from here. Calls not begun by then go with the gateways,
        in order; the others are answered as soon as their outcome is known, or not at all."""
        guests = list(self._guests.values())
        for guest in guests:
            guest.send_on()
        if await _all_in(seconds_max, guests):
            return
        for line in self._lines.values():
            line.hand_back()
        if not await _all_in(DOOR_FINISH_SECONDS_MAX, guests):
            log.info("a door is closed with publishes under way")
            for guest in guests:
                guest.link.leave()

    async def close(self) -> None:
        await asyncio.gather(*(line.close() for line in self._lines.values()))

    # -------------------------------------------------------------------------------------------------- one publish

    def publish(self, call: Publish, answer: Answer) -> None:
        """`answer` is called once, when the lane's holders have the publish, or with an error."""
        try:
            where = self._route(call)
            match where:
                case AppendTo(lane):
                    self._append(lane, call, answer)
                case ForwardTo(host):
                    self._pass_on(self._lane_at(host, call), call, answer)
                case Refused(retry_after_ms):
                    home = self._changing(call)
                    if home is None:
                        raise Unavailable("no host is available for this right now", retry_after_ms=retry_after_ms)
                    self._pass_on(home, call, answer)  # nothing was written: the call waits for the lane's next owner
                case _:
                    raise Unavailable(f"{self._host} does not know where this belongs", retry_after_ms=500)
        except PushqError as error:
            answer(error)

    def _route(self, call: Publish) -> Route:
        table = self._table()
        if table is None:
            raise Unavailable("the cluster's lanes are not founded yet", retry_after_ms=500)
        self._turn += 1
        standing = Standing(self._host, "", self._can_commit, self._alive())
        return route(table, Send(_slot(call, table), table.slots.version), standing, turn=self._turn)

    def _lane_at(self, host: str, call: Publish) -> int:
        table = self._table()
        assert table is not None, "a route was just found by it"
        slot = _slot(call, table)
        lane = table.lane_of(host) if slot is None else table.slots.route(slot)
        assert lane is not None, "a route leads to a lane"
        return lane

    def _changing(self, call: Publish) -> int | None:
        """The lane where a call belongs, while it has no owner or this host is handing it over; else None."""
        table = self._table()
        slot = _slot(call, table) if table is not None else None
        lane = table.slots.route(slot) if table is not None and slot is not None else None
        if table is None or lane is None:
            return None
        row, service = table.lanes[lane], self._services.get(lane)
        is_here = row.is_owned_by(self._host) and service is not None and not service.is_leaving
        return None if is_here else lane

    def _can_commit(self, lane: int) -> bool:
        service = self._services.get(lane)
        return service is not None and not service.is_leaving and not service.store.node.why_not_durable()

    def _append(self, lane: int, call: Publish, answer: Answer) -> None:
        before = self._lines.get(lane)
        if before is not None and before.is_waited_for:
            # Calls from the time when another host owned the lane go first, or messages of a key would be reordered.
            self._pass_on(lane, call, answer)
            return
        service = self._services[lane]
        if service.is_leaving:
            self._pass_on(lane, call, answer)
            return
        tracer, trace = service.tracer, TRACE.get()
        span = None
        if tracer is not None and trace is not None:
            span = tracer.served("append", trace, queue=call.name, tenant=call.tenant, shard=lane)

        def done(result: Placed | PushqError) -> None:
            if span is not None:
                span.ended(result.code if isinstance(result, PushqError) else None)
            if isinstance(result, PushqError) and result.code == NOT_LEADER:
                self._pass_on(lane, call, answer)  # nothing was done: it goes to the lane's present owner
            else:
                answer(result)

        publish_in(service.store, call, done)

    def _pass_on(self, lane: int, call: Publish, answer: Answer) -> None:
        line = self._lines.get(lane)
        if line is None:
            line = self._lines[lane] = self._open_line(lane, Unheard())
        self.passed_on += 1
        may_repeat = call.claim is not None or all(map(is_known_again, blocks_of_sent(call.blocks)))
        frame = call._replace(number=line.next_number())
        size = sum(len(block.data) for block in call.blocks)
        line.call(Call(frame, answer, line.now_ms() + call.budget_ms, may_repeat, size))


def _slot(call: Publish, table: LaneTable) -> int | None:
    """A slot for all of a call's messages; None where they have none. Raises `InvalidRequest`."""
    slots = 0
    for block in call.blocks:
        slots |= to_bits(block.slots)
    if not slots & ~(1 << UNKEYED):
        return None
    slot = (slots & -slots).bit_length() - 1
    lane = table.slots.route(slot)
    if slots.bit_length() > SLOTS or lane is None or slots & ~table.slots.takers[lane]:
        raise InvalidRequest("a publish at a door is for one lane")
    return slot


async def _all_in(seconds_max: float, guests: Sequence[DoorGuest]) -> bool:
    """Whether all that the guests brought is answered within that time."""
    try:
        async with asyncio.timeout(seconds_max):
            await asyncio.gather(*(guest.finish() for guest in guests))
    except TimeoutError:
        return False
    return True


class DoorGuest:
    """One gateway at the door. Answers of one turn of the loop are sent as one frame."""

    def __init__(self, door: Door, link: Link):
        self.link = link
        self._door = door
        self._placed: list[tuple[int, Placed | None, Wrong | None]] = []
        self._is_flushing = self._has_departed = False
        self._under_way = 0
        """Calls without an answer; 0 once it has departed."""
        self._has_heard = asyncio.Event()
        """Set when the gateway knows that it was referred to another door: nothing more comes."""
        self._quiet = asyncio.Event()

    def tell_definitions(self) -> None:
        """A door has no definitions; the frame alone says that the door is open."""
        self.link.send(pack(Defined(False, raw(None))))

    def room(self) -> None:
        """Does nothing: a door leases no messages."""

    def heard(self, frame: Publishes | Settles | Wants | Asks) -> None:
        if self._door.is_leaving and frame == Wants([]):
            self._has_heard.set()  # a connection that was referred to another door answers so
            return
        if not isinstance(frame, Publishes):
            raise InvalidRequest("a door takes publishes alone")
        self._under_way += len(frame.calls)
        traces = frame.traces or {}
        for call in frame.calls:
            with carried(traces.get(call.number)):
                self._door.publish(call, self._answer_to(call.number))

    def _answer_to(self, number: int) -> Answer:
        def answer(result: Placed | PushqError) -> None:
            is_error = isinstance(result, PushqError)
            self._placed.append((number, None, wrong(result)) if is_error else (number, result, None))  # type: ignore[arg-type]
            if not self._is_flushing:
                self._is_flushing = True
                asyncio.get_running_loop().call_soon(self._flush)

        return answer

    def _flush(self) -> None:
        self._is_flushing = False
        if self._has_departed:
            return
        try:
            self.link.send(pack(Results(self._placed, [])))
        except Exception:
            # They would be sent again with the next answers, and fail again: the gateway asks anew, here or elsewhere.
            log.exception("a gateway could not be answered")
            self.link.abort()
        self._under_way -= len(self._placed)
        self._placed = []
        if not self._under_way:
            self._quiet.set()

    def send_on(self) -> None:
        self.link.send(pack(Turned(_TURNED, None)))

    async def finish(self) -> None:
        """After `send_on`: returns when nothing more comes and all that came is answered, and ends the connection."""
        await self._has_heard.wait()
        while self._under_way and not self.link.has_left:
            self._quiet.clear()
            await self._quiet.wait()
        self.link.leave()

    def departed(self) -> None:
        """The connection is gone, and no answers are awaited."""
        self._has_departed = True
        self._under_way = 0
        self._has_heard.set()
        self._quiet.set()


class OwnersOfLanes:
    """The addresses of lanes' owners, as far as this host knows; see `remote.definitions.directory.Directory`."""

    def __init__(self, address: Callable[[int], str | None]):
        self._address = address
        self._hint: tuple[str, int] | None = None

    def address(self, shard: int) -> tuple[str, int] | None:
        hint, self._hint = self._hint, None
        return hint or parsed(self._address(shard))

    def failed(self, shard: int, address: Address, leader: str | None) -> None:
        self._hint = parsed(leader)
