"""A host's door: gateways bring publishes of any queue here, and it has each placed in the lane where it belongs.

What can be known by nothing goes into the lane of this host, what has a slot to its home lane: `routing` decides. A
lane of this process takes it at once; to another one it is passed on, and answered when that has answered, which is
after its replication. Nothing is stored here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import structlog

from backend_store.core.host_lanes.routing import AppendTo, ForwardTo, Refused, Route, Send, Standing, route
from backend_store.core.host_lanes.table import LaneTable
from backend_store.core.slots import SLOTS, UNKEYED
from backend_store.model import InvalidRequest, PushqError, Unavailable
from backend_store.remote.directory import Address, parsed
from backend_store.remote.doors import Unheard
from backend_store.remote.line import Call, Line
from backend_store.remote.queue import is_known_again
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
"""Longer than a lane is without an owner when that is lost: whose call still waits then is cut off from it."""
SHUT_OUT_SECONDS: Final = 1.0
"""The same for a host whose own lane has gone to another one while it served: that is because nobody followed it."""
_TURNED: Final = wrong(PushqError("this host is about to end", code=NOT_LEADER))

Answer = Callable[[Placed | PushqError], None]
OpenLine = Callable[[int, Unheard], Line]
"""The line to whoever owns a lane."""


class Door:
    """See the file's first sentence. `table`: as this host knows it now; None while it does not."""

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
        """Publishes that went to another host."""
        self.lanes = lanes
        self.zone = zone
        self.has_led = False
        """Whether its own lane was served here."""
        self._is_ending = self._is_cut_off = False
        self._beyond: list[int] = []
        """Lanes whose owners are out of reach from here."""
        self._waiting: dict[int, tuple[int | None, float]] = {}
        """By lane, the oldest call that waits for its owner, and since when it is that."""
        self._host = host
        self._table = table
        self._alive = alive
        self._services = services
        self._open_line = open_line
        self._lines: dict[int, Line] = {}
        self._guests: dict[str, DoorGuest] = {}
        self._turn = 0

    # ---------------------------------------------------------------------------------------------- coming and going

    def arrive(self, greeting: Greeting, link: Link) -> tuple[DoorGuest, Greeted]:
        if (before := self._guests.get(greeting.gateway)) is not None:
            before.departed()  # it came back by another connection
        guest = self._guests[greeting.gateway] = DoorGuest(self, link)
        return guest, Greeted(STORE_VERSION, self._host, 0, [], (0, 0), self.lanes, self.lanes, zone=self.zone)

    def depart(self, name: str, link: Link) -> None:
        guest = self._guests.get(name)
        if guest is not None and guest.link is link:
            del self._guests[name]
            guest.departed()

    async def watch(self) -> None:
        """For as long as the host serves: while it is cut off, gateways go to another door. What waits here for a
        lane's owner goes with them, in its order."""
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
        """For how long one call has waited for the lane's owner, in seconds."""
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
        """Whether others may reach the lane's owner and this host cannot. Where it reaches some host, it is the owner
        that is cut off."""
        table = self._table()
        owner = table.lanes[lane].owner if table is not None else None
        if table is None or owner is None or self._lines[lane].is_open:
            return False
        if owner.host == self._host:
            return lane not in self._services  # it has lost the lane and not heard to whom
        reached = [n for n, line in self._lines.items() if line.is_open and not table.lanes[n].is_owned_by(self._host)]
        return owner.host in self._alive() and not reached

    async def finish(self) -> None:
        """Sends every gateway on to another host's door, and returns when what they brought is answered, or has taken
        `DOOR_FINISH_SECONDS_MAX`."""
        self._is_ending = True
        await self._leave(DOOR_FINISH_SECONDS_MAX)

    @property
    def is_leaving(self) -> bool:
        """Gateways go to another door: the host is about to end, or is cut off."""
        return self._is_ending or self._is_cut_off

    async def _leave(self, seconds_max: float) -> None:
        """For so long what was brought may find its owner from here. What was not begun by then goes with the gateways,
        in its order; of the rest they hear as soon as it is known, or not."""
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
        """`answer` runs once, when the lane's holders have it, or with what is wrong."""
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
                        raise Unavailable("no host that may take this can now", retry_after_ms=retry_after_ms)
                    self._pass_on(home, call, answer)  # nothing was written: it waits for who owns the lane next
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
        """The lane where a call belongs, while nobody owns it or this host is handing it over; else None."""
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
            # What came while another one owned the lane goes first, or messages of a key would change places.
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
                self._pass_on(lane, call, answer)  # nothing was done: it goes to who owns the lane now
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
    """One that stands for all of a call's messages; None where they have none. Raises `InvalidRequest`."""
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
    """Whether all that they brought is answered within that time."""
    try:
        async with asyncio.timeout(seconds_max):
            await asyncio.gather(*(guest.finish() for guest in guests))
    except TimeoutError:
        return False
    return True


class DoorGuest:
    """One gateway at the door. What was answered in one turn leaves as one frame."""

    def __init__(self, door: Door, link: Link):
        self.link = link
        self._door = door
        self._placed: list[tuple[int, Placed | None, Wrong | None]] = []
        self._is_flushing = self._has_departed = False
        self._under_way = 0
        """Calls without an answer; 0 once it has departed."""
        self._has_heard = asyncio.Event()
        """That it was sent on: nothing more comes."""
        self._quiet = asyncio.Event()

    def tell_definitions(self) -> None:
        """There are none here; the word alone says that it is open."""
        self.link.send(pack(Defined(False, raw(None))))

    def room(self) -> None:
        """Nothing is leased here."""

    def heard(self, frame: Publishes | Settles | Wants | Asks) -> None:
        if self._door.is_leaving and frame == Wants([]):
            self._has_heard.set()  # so does a line that was sent on answer
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
            # They would be said again with all that comes, and fail again: the gateway asks anew, here or elsewhere.
            log.exception("a gateway could not be answered")
            self.link.abort()
        self._under_way -= len(self._placed)
        self._placed = []
        if not self._under_way:
            self._quiet.set()

    def send_on(self) -> None:
        self.link.send(pack(Turned(_TURNED, None)))

    async def finish(self) -> None:
        """Of one that was sent on: returns when nothing more comes and all that came is answered, and ends the
        connection."""
        await self._has_heard.wait()
        while self._under_way and not self.link.has_left:
            self._quiet.clear()
            await self._quiet.wait()
        self.link.leave()

    def departed(self) -> None:
        """Its connection is gone, and nobody waits for answers."""
        self._has_departed = True
        self._under_way = 0
        self._has_heard.set()
        self._quiet.set()


class OwnersOfLanes:
    """Where a lane's owner is, as this host has heard; see `remote.directory.Directory`."""

    def __init__(self, address: Callable[[int], str | None]):
        self._address = address
        self._hint: tuple[str, int] | None = None

    def address(self, shard: int) -> tuple[str, int] | None:
        hint, self._hint = self._hint, None
        return hint or parsed(self._address(shard))

    def failed(self, shard: int, address: Address, leader: str | None) -> None:
        self._hint = parsed(leader)
