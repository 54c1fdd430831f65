"""A line: a gateway's connection to the leader of one shard, reopened for as long as it is wanted, and the calls that
wait for it.

Calls made in one turn of the event loop leave in one frame. When the connection is lost, calls that were sent are sent
again if repeating them does no harm; the outcome of the others is unknown. Unsent calls wait until their deadline.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import structlog
from websockets.asyncio.client import connect, unix_connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.typing import Subprotocol

from backend_store.client.since import ASKED, changed, waited_until
from backend_store.model import (
    ClusterAway,
    InvalidRequest,
    NotDurable,
    OutcomeUnknown,
    Overloaded,
    PushqError,
    StorageFull,
    Unavailable,
)
from backend_store.remote.definitions.directory import Address, Directory, parsed
from backend_store.remote.limits import (
    ASK_MS_MAX,
    AWAY_SECONDS,
    LATE_ANSWER_MS,
    LINE_ASKS_MAX,
    LINE_CALLS_MAX,
    LINE_CONNECT_SECONDS_MAX,
    LINE_COUNT_CALLS,
    LINE_CROWDED_MIN,
    LINE_FRAME_BYTES_SOFT_MAX,
    LINE_ONWARD_MS,
    LINE_OWN_ASKS_MAX,
    LINE_PING_SECONDS,
    LINE_PUBLISHES_MAX,
    LINE_RECONNECT_SECONDS_MAX,
    LINE_SILENCE_SECONDS_MAX,
    LINE_STRANGER_SECONDS_MAX,
    LINE_STRANGERS_IN_A_ROW,
    STRANGER_SECONDS,
    SWEEP_SECONDS,
)
from backend_store.remote.line.backend_addresses import Addresses
from backend_store.remote.line.fair_share import Crowd
from backend_store.service.ask_room import AskRoom
from backend_store.service.asked import Asked
from backend_store.tracing import TRACE
from backend_store.wire.sockets import ClientWire
from backend_store.wire.store_frames import (
    NOT_LEADER,
    STORE_FRAME_BYTES_MAX,
    STORE_PROTOCOL,
    STORE_SUBPROTOCOL,
    STORE_VERSION,
    Answered,
    Asks,
    Backends,
    Bits,
    Copies,
    Defined,
    Ended,
    FromBackend,
    Greeted,
    Greeting,
    GroupNews,
    Known,
    Leases,
    Place,
    Publish,
    Publishes,
    Results,
    Settle,
    Settles,
    Sought,
    Tails,
    Traces,
    Turned,
    Want,
    Wants,
    error_of,
    from_backend,
    of_bits,
    pack,
    raw,
    sent_publish,
    to_bits,
)
from backend_store.wire.versions import OTHER_VERSION, OtherVersion, Strangers, check_version

log = structlog.get_logger("pushq.line")

_NOT_BEGUN = frozenset(error.code for error in (Overloaded, Unavailable, NotDurable, StorageFull))
"""With these codes a backend refuses a call that it has not begun: they say nothing about an earlier try."""
NOTHING_KNOWN: Final = Known("", {})
_GIVES_BACK = frozenset({"return", "unsent"})
"""Verbs that return messages to the queue, to be delivered again."""


class Owner(Protocol):
    """The owner of a line: `Home`."""

    def held(self) -> list[tuple[Place, str, Bits]]:
        """Returns the leases that consumers of this gateway hold."""

    def greeted(self, frame: Greeted) -> None: ...
    def copied(self, copies: list[Copies]) -> None:
        """Takes over how the cluster's shards are replicated from now on."""

    def defined(self, frame: Defined, *, is_first: bool) -> None:
        """`is_first`: the connection is new: all frames up to the one that is the last belong together."""

    def leased(self, frame: Leases) -> None: ...
    def ended(self, frame: Ended) -> None: ...
    def group_news(self, frame: GroupNews) -> None: ...
    def tails(self, frame: Tails) -> None: ...
    def sought(self, frame: Sought) -> None: ...
    def lost(self) -> None:
        """Called when the connection is lost."""


@dataclass(slots=True)
class Call:
    """A publish or a settlement that waits for its answer. `reply` gets the result, or an error."""

    frame: Publish | Settle
    reply: Callable[[Any], None]
    until_ms: int
    may_repeat: bool
    size: int = 0
    known_ms: int | None = None
    """How long after the first send the backend still recognises a repeat; None: for ever."""
    is_sent: bool = False
    first_sent_ms: int | None = None
    """When it was first sent to a backend that may have begun it; None if no backend can have."""
    is_repeat: bool = False
    """It was sent to a backend that was lost and may have done it."""
    trace: str | None = None
    """The trace that it belongs to, if spans are wanted."""

    def begins_until_ms(self) -> int:
        """The time after which no backend may begin the call."""
        if not self.is_repeat or self.known_ms is None or self.first_sent_ms is None:
            return self.until_ms
        return min(self.until_ms, self.first_sent_ms + self.known_ms)


class Line:
    def __init__(
        self,
        shard: int,
        directory: Directory,
        owner: Owner,
        gateway: str,
        tls: ssl.SSLContext | None,
        *,
        whose: str = "",
        cluster: str = "",
        addresses: Addresses | None = None,
    ):
        """`whose`: shown in errors instead of the shard's number. `cluster`: the name of the further cluster that the
        line leads to, "" for the home cluster; while a further cluster is away, calls are refused at once.
        `addresses`: told which backends are live; None if not needed."""
        self.shard = shard
        self._whose = (whose or f"the backend of shard {shard}") + (f" of cluster {cluster!r}" if cluster else "")
        self._log = log.bind(cluster=cluster) if cluster else log
        self._directory = directory
        self._addresses = addresses
        self._owner = owner
        self._gateway = gateway
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._connection: ClientWire | None = None
        self._is_open = False
        self._open = asyncio.Event()
        self._number = 0
        self._calls: dict[int, Call] = {}
        self._crowd = Crowd(places_max=LINE_PUBLISHES_MAX, count_calls=LINE_COUNT_CALLS)
        self._unsent: list[int] = []
        self._asked: dict[int, asyncio.Future[msgspec.Raw]] = {}
        self._ask_room = AskRoom(f"wait for {self._whose}", LINE_ASKS_MAX, own_max=LINE_OWN_ASKS_MAX)
        self._wants: dict[tuple[Place, int, bool], Want] = {}
        """Credit to send. A want that ends has a key of its own, so that it is sent before the one that begins anew."""
        self._quiet: list[Settle] = []
        self._owed: list[Settle] = []
        """Returns of messages that no backend was told of yet: the next one is."""
        self._is_flushing = self._is_leaving = False
        self._is_sent_on = False
        """The backend takes no more calls: it answers those it began, then ends the connection."""
        self._onward: tuple[str, int] | None = None
        """The next leader's address, as the previous leader said."""
        self._problem = "is not connected yet"
        self._strangers = Strangers(self._warn)
        self._met_strangers = 0
        """Connections in a row to backends of another version."""
        self._refused: dict[Address, float] = {}
        """Backends of another version → when they were found to be."""
        self._patience_s = AWAY_SECONDS if cluster else float("inf")
        self._closed_at = self._loop.time()
        self.connections = 0
        """How often the line was connected."""
        self._known = NOTHING_KNOWN
        """The version of the definitions received so far: a backend of the same era sends only what is newer."""
        self._tasks = [
            self._loop.create_task(self._keep_connected(), name=f"line {shard}"),
            self._loop.create_task(self._sweep(), name=f"deadlines of line {shard}"),
        ]

    def now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    @property
    def is_open(self) -> bool:
        return self._is_open

    @property
    def is_away(self) -> bool:
        """Of a further cluster: whether the line has been closed for so long that calls are refused at once."""
        return not self._is_open and self._loop.time() - self._closed_at >= self._patience_s

    def was_refused_at(self, address: Address) -> bool:
        """Whether a backend at `address` spoke another version within the last `STRANGER_SECONDS`."""
        return self._loop.time() - self._refused.get(address, float("-inf")) < STRANGER_SECONDS

    @property
    def is_waited_for(self) -> bool:
        """Whether calls wait for an answer."""
        return bool(self._calls)

    @property
    def waits_with(self) -> int | None:
        """The number of the oldest call that waits for an answer; None if none does."""
        return next(iter(self._calls), None)

    def hand_back(self) -> None:
        """Answers `NOT_LEADER` to each call that no backend can have begun: its caller may send it elsewhere."""
        for number, call in list(self._calls.items()):
            if not call.is_sent and not call.is_repeat:
                del self._calls[number]
                self._tell(call, PushqError(f"{self._whose} is unreachable from here", code=NOT_LEADER))

    async def opened(self, seconds_max: float) -> bool:
        """Waits up to `seconds_max`. Returns whether the line is open."""
        try:
            await asyncio.wait_for(self._open.wait(), seconds_max)
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._addresses is not None:
            self._addresses.silent(self)
        for call in self._calls.values():
            self._tell(call, _open() if call.is_sent or call.is_repeat else self._unavailable())
        self._calls.clear()

    def unavailable(self) -> Unavailable:
        return self._unavailable()

    def _unavailable(self) -> Unavailable:
        detail = f"{self._whose} {self._problem}"
        return ClusterAway(detail, retry_after_ms=1_000) if self.is_away else Unavailable(detail, retry_after_ms=500)

    # ------------------------------------------------------------------------------------------------ connection

    async def _keep_connected(self) -> None:
        pause = 0.02
        while True:
            onward = self._take_onward()
            address = onward or self._directory.address(self.shard)
            leader: str | None = None
            if address is not None:
                connected = self.connections
                try:
                    leader = await self._visit(address, waits_ms=LINE_ONWARD_MS if onward else 0)
                    self._met_strangers = 0
                except OtherVersion as error:
                    self._refuse(address, error)
                except (ConnectionClosed, InvalidHandshake, OSError, TimeoutError, PushqError) as error:
                    self._problem = f"is unreachable: {error or type(error).__name__}"
                except Exception:
                    self._log.exception("a line failed", shard=self.shard)
                    self._problem = "failed"
                if self.connections > connected:
                    pause = 0.02
                if self._addresses is not None:
                    self._addresses.silent(self)
                self._directory.failed(self.shard, address, leader)
                if self._onward is not None:
                    continue
            await asyncio.sleep(random.uniform(pause / 2, pause))
            is_at_leisure = self._met_strangers >= LINE_STRANGERS_IN_A_ROW
            pause = min(LINE_STRANGER_SECONDS_MAX if is_at_leisure else LINE_RECONNECT_SECONDS_MAX, pause * 2)

    def _refuse(self, address: Address, why: OtherVersion) -> None:
        self._met_strangers += 1
        self._problem = f"has another version: {why.detail}"
        self._refused = {at: when for at, when in self._refused.items() if self.was_refused_at(at)}
        self._refused[address] = self._loop.time()
        self._strangers.refuse(OtherVersion(why.detail, who=_shown(address)))

    def _warn(self, why: OtherVersion) -> None:
        self._log.warning("a backend has another version", shard=self.shard, address=why.who, reason=why.detail)

    def _take_onward(self) -> tuple[str, int] | None:
        onward, self._onward = self._onward, None
        return onward

    def _connect(self, address: Address) -> connect:
        options: dict[str, Any] = {
            "subprotocols": [Subprotocol(STORE_SUBPROTOCOL)],
            "compression": None,
            "open_timeout": LINE_CONNECT_SECONDS_MAX,
            "close_timeout": 1,
            "ping_interval": LINE_PING_SECONDS,
            "ping_timeout": LINE_SILENCE_SECONDS_MAX,
            "max_size": STORE_FRAME_BYTES_MAX,
            "create_connection": ClientWire,
        }
        if isinstance(address, Path):
            return unix_connect(str(address), **options)
        scheme = "wss" if self._tls is not None else "ws"
        return connect(f"{scheme}://{_shown(address)}", ssl=self._tls, proxy=None, **options)

    async def _visit(self, address: Address, *, waits_ms: int) -> str | None:
        """Serves the line from one backend while that leads. Returns the leader's address if it names another."""
        async with self._connect(address) as connection:
            assert isinstance(connection, ClientWire), "as the options say"
            held = [*_with_these(self._owner.held(), [*self._owed, *self._takes_in_doubt()])]
            hears = self._addresses is not None
            about = waits_ms, self._known, hears
            greeting = Greeting(STORE_VERSION, self._gateway, self.shard, held, *about, gives_sessions=True)
            await connection.send(pack(greeting))
            async with asyncio.timeout(LINE_CONNECT_SECONDS_MAX):
                while isinstance(first := self._first(await connection.recv(decode=False), address), Backends):
                    self._hear_of(first)
            if isinstance(first, Turned):
                if first.wrong.code == OTHER_VERSION:
                    raise OtherVersion(first.wrong.detail, who=_shown(address))
                is_elsewhere = first.wrong.code == NOT_LEADER
                self._problem = f"is not at {_shown(address)}" if is_elsewhere else f"refuses: {first.wrong.detail}"
                return first.leader
            if not isinstance(first, Greeted):
                raise InvalidRequest(f"{_shown(address)} is not a backend")
            self._strangers.let_in(_shown(address))
            self._connection = connection
            self._owner.greeted(first)
            self._log.info("connected to a backend", shard=self.shard, address=_shown(address))
            try:
                await connection.hear(lambda data: self._heard(from_backend(data)))
            finally:
                self._lose()
        return None

    def _takes_in_doubt(self) -> list[Settle]:
        """Requests for leases of other gateways whose answer was lost."""
        frames = (call.frame for call in self._calls.values() if call.is_repeat)
        return [frame for frame in frames if isinstance(frame, Settle) and frame.verb == "take"]

    def _first(self, data: bytes, address: Address) -> FromBackend:
        """Decodes the first frame. Raises `OtherVersion`, `InvalidRequest`."""
        them = f"the backend at {_shown(address)}"
        check_version(data, STORE_VERSION, me=self._gateway, protocol=STORE_PROTOCOL, them=them)
        return from_backend(data)

    def _hear_of(self, frame: Backends) -> None:
        if self._addresses is not None:
            self._addresses.said(self, frame.there)

    def _post(self, frame: bytes) -> None:
        if self._connection is not None:
            self._connection.post(frame)

    def _heard(self, frame: FromBackend) -> None:
        match frame:
            case Results(placed, judged):
                for number, done, error in placed:
                    self._answer(number, done, error)
                for number, bits, error in judged:
                    self._answer(number, bits, error)
            case Leases():
                self._owner.leased(frame)
            case Ended():
                self._owner.ended(frame)
            case GroupNews():
                self._owner.group_news(frame)
            case Tails():
                self._owner.tails(frame)
            case Defined():
                self._owner.defined(frame, is_first=not self._is_open)
                self._known = (frame.known if frame.is_last else None) or NOTHING_KNOWN
                if not self._is_open and frame.is_last:
                    self._opened()
            case Sought():
                self._owner.sought(frame)
            case Backends():
                self._hear_of(frame)
                if frame.copies:
                    self._owner.copied(frame.copies)
            case Turned():
                self._send_on(parsed(frame.leader))
            case Answered(number, value, error):
                waiting = self._asked.get(number)
                if waiting is not None and not waiting.done():
                    if error is not None:
                        waiting.set_exception(error_of(error))
                    else:
                        waiting.set_result(value)
            case _:
                raise InvalidRequest(f"a backend says {type(frame).__name__} out of turn")

    def _answer(self, number: int, done: Any, error: Any) -> None:
        call = self._calls.get(number)
        if call is None:
            return
        if error is not None and error.code == NOT_LEADER:
            call.is_sent = False
            if not call.is_repeat:
                call.first_sent_ms = None
            self._unsent.append(number)  # nothing was done: the call goes to the next leader
            self._maybe_leave()
            return
        del self._calls[number]
        if error is not None and call.is_repeat and error.code in _NOT_BEGUN:
            self._tell(call, _open())  # not begun this time, but an earlier try may have done it
        else:
            try:
                call.reply(error_of(error) if error is not None else done)
            except Exception:
                self._blame()
        self._maybe_leave()

    def _tell(self, call: Call, result: Any) -> None:
        try:
            call.reply(result)
        except Exception:
            self._blame()

    def _blame(self) -> None:
        """Logs a bug of a listener: the other calls must still be answered."""
        self._log.exception("a listener failed on what it was told", shard=self.shard)

    def _send_on(self, leader: tuple[str, int] | None) -> None:
        """The backend is about to end the connection: new calls wait for the next one."""
        self._is_sent_on, self._onward = True, leader
        self._open.clear()
        self._wants.clear()
        quiet, self._quiet = self._quiet, []
        if any(isinstance(call.frame, Settle) and not call.is_sent for call in self._calls.values()):
            # These calls wait for the next leader; returned messages must reach it after them.
            for settle in quiet:
                self._owe(settle)
            quiet = [settle for settle in quiet if settle.verb not in _GIVES_BACK]
        if quiet:
            self._post(pack(Settles(quiet)))
        self._post(pack(Wants([])))

    def cut(self) -> None:
        """Ends the connection: the greeting of the next one lists the leases held here by then."""
        if self._connection is not None:
            self._connection.transport.abort()

    def leave_when_quiet(self) -> None:
        """Reconnects to the address in the directory once every request and call that was sent has its answer; calls
        that come meanwhile wait. Does nothing if the line is not open: it reconnects anyway."""
        if not self._is_open:
            return
        self._is_leaving = True
        self._open.clear()
        self._maybe_leave()

    def _maybe_leave(self) -> None:
        is_quiet = self._is_leaving and not self._asked and not any(call.is_sent for call in self._calls.values())
        if is_quiet:
            self.cut()

    def _opened(self) -> None:
        """All definitions have arrived: sends what waited."""
        self.connections += 1
        self._is_open = True
        self._open.set()
        self._problem = "was lost"
        owed, self._owed = self._owed, []
        self._quiet += map(_by_receipts, owed)
        self._flush_soon()

    def _lose(self) -> None:
        was_left = self._is_leaving or self._is_sent_on or (self._connection is not None and self._connection.was_left)
        self._connection = None
        if self._is_open:
            self._closed_at = self._loop.time()
        self._is_open = self._is_leaving = self._is_sent_on = False
        self._open.clear()
        self._wants.clear()
        quiet, self._quiet = self._quiet, []
        for settle in quiet:
            self._owe(settle)
        if was_left:
            self._log.info("a backend goes away", shard=self.shard)
        else:
            self._log.warning("a backend was lost", shard=self.shard)
        unknown = []
        for number, call in list(self._calls.items()):
            if call.is_sent and not call.may_repeat:
                unknown.append(self._calls.pop(number))
            elif call.is_sent:
                call.is_sent, call.is_repeat = False, True
        self._unsent = list(self._calls)
        for waiting in self._asked.values():
            if not waiting.done():
                waiting.set_exception(ConnectionResetError("the backend was lost"))
        try:
            self._owner.lost()
        finally:
            for call in unknown:
                self._tell(call, _open())

    # -------------------------------------------------------------------------------------------------- what goes

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def call(self, call: Call) -> None:
        """Sends a publish or a settlement together with the others of this turn of the loop; `reply` runs later, with
        `Overloaded` if too many calls wait."""
        waiting = len(self._calls)
        if waiting >= LINE_CROWDED_MIN and (why := self._why_full(call.frame, waiting)) is not None:
            self._loop.call_soon(call.reply, Overloaded(why, retry_after_ms=500))
            return
        call.trace = TRACE.get()
        self._calls[call.frame.number] = call
        self._unsent.append(call.frame.number)
        self._flush_soon()

    def _why_full(self, frame: Publish | Settle, waiting: int) -> str | None:
        """Why a call is refused when nearly all places are taken; None if it is not."""
        if waiting >= LINE_PUBLISHES_MAX and (waiting >= LINE_CALLS_MAX or isinstance(frame, Publish)):
            return (
                f"{waiting} requests are already waiting for {self._whose}, the limit for requests like this; "
                "retry later"
            )
        calls = (call.frame for call in self._calls.values())
        if isinstance(frame, Publish) and not self._crowd.admits(frame, waiting, calls):
            held = (
                f"{self._crowd.held(frame.tenant)} requests of tenant {frame.tenant!r} are already waiting for "
                f"{self._whose}"
            )
            return f"{held}, as many as fit beside all others; retry later"
        return None

    def tell(self, settle: Settle) -> None:
        """Sends a settlement without waiting for an answer."""
        if self._is_open and not self._is_sent_on:
            self._quiet.append(settle)
            self._flush_soon()
        else:
            self._owe(settle)

    def _owe(self, settle: Settle) -> None:
        """Keeps a return for the next backend. Beyond `LINE_CALLS_MAX`, messages come again only after their visibility
        timeout."""
        if settle.verb in _GIVES_BACK and len(self._owed) < LINE_CALLS_MAX:
            self._owed.append(settle)

    def want(self, want: Want) -> None:
        if self._is_open:
            self._wants[want.place, want.visibility_ms, want.most > 0] = want
            self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        is_ending = self._is_leaving and not self._asked  # calls need not wait for what was asked before
        if not self._is_open or is_ending or self._is_sent_on:
            self._refuse_if_away()
            return
        now_ms = self.now_ms()
        publishes: list[Publish] = []
        settles: list[Settle] = []
        published_for: Traces = {}
        settled_for: Traces = {}
        size = 0
        numbers, self._unsent = self._unsent, []
        for number in numbers:
            call = self._calls.get(number)
            if call is None or call.is_sent:
                continue
            if call.is_repeat and now_ms >= call.begins_until_ms():
                del self._calls[number]
                self._loop.call_soon(call.reply, _open())
                continue
            call.is_sent = True
            if call.first_sent_ms is None:
                call.first_sent_ms = now_ms
            if isinstance(call.frame, Settle):
                settles.append(call.frame)
                if call.trace is not None:
                    settled_for[number] = call.trace
                continue
            publishes.append(sent_publish(call.frame, max(0, call.begins_until_ms() - now_ms)))
            size += call.size
            if call.trace is not None:
                published_for[number] = call.trace
                size += len(call.trace)
            if size > LINE_FRAME_BYTES_SOFT_MAX:
                self._post(pack(Publishes(publishes, published_for or None)))
                publishes, published_for, size = [], {}, 0
        if publishes:
            self._post(pack(Publishes(publishes, published_for or None)))
        # Leases returned when their holder leaves must come after that holder's acks.
        settles += self._quiet
        self._quiet = []
        if settles:
            self._post(pack(Settles(settles, settled_for or None)))
        if self._wants:
            self._post(pack(Wants(list(self._wants.values()))))
            self._wants.clear()

    def _refuse_if_away(self) -> None:
        """If the cluster is away, refuses calls that were never sent; those that may have been done wait to be sent
        again."""
        if not self.is_away:
            return
        numbers, self._unsent = self._unsent, []
        for number in numbers:
            if (call := self._calls.get(number)) is None:
                continue
            if call.is_repeat:
                self._unsent.append(number)
            else:
                del self._calls[number]
                self._tell(call, self._unavailable())

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self._refuse_if_away()
            now_ms = self.now_ms()
            for number, call in list(self._calls.items()):
                if now_ms < call.until_ms + (LATE_ANSWER_MS if call.is_sent else 0):
                    continue
                del self._calls[number]
                if call.is_sent or call.is_repeat:
                    self._tell(
                        call, OutcomeUnknown("the backend did not respond in time; it may have completed the request")
                    )
                else:
                    self._tell(call, self._unavailable())
            self._unsent = [number for number in self._unsent if number in self._calls]
            self._maybe_leave()

    # --------------------------------------------------------------------------------------------------- requests

    async def ask(self, operation: Any, *, may_repeat: bool, is_change: bool = False) -> msgspec.Raw:
        """Returns the answer of the shard's leader, asking again while the caller waits. `may_repeat`: asking twice
        does no harm. `is_change`: of a repeatable operation, whether the caller must be told that it may have been
        done. Raises `PushqError`, `OutcomeUnknown` among them."""
        whose = _account_of(operation)
        self._ask_room.take(whose)
        try:
            return await self._answer_to(operation, whose, may_repeat=may_repeat, is_change=is_change)
        finally:
            self._ask_room.give(whose)

    async def _answer_to(self, operation: Any, whose: str | None, *, may_repeat: bool, is_change: bool) -> msgspec.Raw:
        is_change = is_change or not may_repeat
        is_open = False  # whether a backend that was lost may have done it
        until = min(self._loop.time() + ASK_MS_MAX / 1000, waited_until())
        what = raw(operation)
        while True:
            if self._loop.time() >= until:
                if is_open:
                    raise _lost_with_a_change()
                raise Unavailable(f"the request timed out before {self._whose} was asked", retry_after_ms=500)
            if not await self.opened(self._waits_s(until)):
                raise _lost_with_a_change() if is_open else self._unavailable()
            if not self._is_open or self._is_sent_on:
                continue  # the connection was lost again before this task resumed; nothing was sent
            number = self.next_number()
            waiting: asyncio.Future[msgspec.Raw] = self._loop.create_future()
            self._asked[number] = waiting
            try:
                left_ms = max(0, int((until - self._loop.time()) * 1000))
                self._post(pack(Asks(number, left_ms, what, TRACE.get(), whose)))
                async with asyncio.timeout_at(until):
                    answer = await waiting
                if is_change:
                    changed()
                return answer
            except TimeoutError:
                if not is_change:
                    raise self._unavailable() from None
                raise OutcomeUnknown("the backend did not respond in time; the change may have been made") from None
            except ConnectionResetError:
                if not may_repeat:
                    raise _lost_with_a_change() from None
                is_open = is_change
            except PushqError as error:
                if is_open and error.code in _NOT_BEGUN:
                    raise _lost_with_a_change() from None
                if error.code != NOT_LEADER:
                    raise
                await asyncio.sleep(SWEEP_SECONDS)
            finally:
                del self._asked[number]
                self._maybe_leave()
                if waiting.done() and not waiting.cancelled():
                    waiting.exception()  # retrieved, so that asyncio does not report it as never retrieved

    def _waits_s(self, until: float) -> float:
        now = self._loop.time()
        return max(0.0, until - now if self._is_open else min(until, self._closed_at + self._patience_s) - now)


def _with_these(held: Iterable[tuple[Place, str, Bits]], more: Iterable[Settle]) -> Iterator[tuple[Place, str, Bits]]:
    """Adds the leases that consumers returned and the backend is told of next, and those that may have been taken from
    another gateway. Without them in the greeting, the backend would assume that they were never delivered and count no
    attempt."""
    found = {token: (place, to_bits(bits)) for place, token, bits in held}
    for settle in more:
        for token, bits in settle.grouped.items() if settle.verb in ("return", "take") else ():
            _, others = found.get(token, (settle.place, 0))
            found[token] = settle.place, others | to_bits(bits)
    return ((place, token, of_bits(bits)) for token, (place, bits) in found.items())


def _by_receipts(settle: Settle) -> Settle:
    """Rewrites a return as a nack: the next backend may not know who holds the lease, only the receipts at most."""
    return settle._replace(verb="nack", milliseconds=0, tried=settle.verb != "unsent")


def _account_of(operation: Any) -> str | None:
    """The tenant that the request counts against; "" if the request names none, None for the gateway's own requests."""
    about = operation.whose if isinstance(operation, Asked) else None
    request = ASKED.get()
    if request is None or request.whose is None:
        return about if request is None else None
    return request.whose or about or ""


def _lost_with_a_change() -> OutcomeUnknown:
    return OutcomeUnknown("the connection to the backend was lost; the change may have been made")


def _open() -> OutcomeUnknown:
    return OutcomeUnknown("the connection to the backend was lost before it responded; it may have stored the messages")


def _shown(address: Address) -> str:
    return address.name if isinstance(address, Path) else f"{address[0]}:{address[1]}"
