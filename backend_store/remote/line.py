"""A line: the connection to the leader of one shard, reopened for as long as it is wanted, and what waits for it.

What was asked in one turn of the loop leaves as one frame. When the connection is lost, what was sent and may be done
twice without harm is sent again; of the rest the outcome is unknown. What was not sent waits, until its deadline.
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
from backend_store.remote.addresses import Addresses
from backend_store.remote.crowd import Crowd
from backend_store.remote.directory import Address, Directory, parsed
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
"""With these a backend refuses what it has not looked at: they say nothing of an earlier try."""
NOTHING_KNOWN: Final = Known("", {})
_GIVES_BACK = frozenset({"return", "unsent"})
"""What is done with messages that come again."""


class Owner(Protocol):
    """Whose line it is."""

    def held(self) -> list[tuple[Place, str, Bits]]:
        """The leases that consumers here hold."""

    def greeted(self, frame: Greeted) -> None: ...
    def copied(self, copies: list[Copies]) -> None:
        """How the cluster's shards are copied from now on."""

    def defined(self, frame: Defined, *, is_first: bool) -> None:
        """`is_first`: the connection is new, and all that comes until one of them is the last belongs together."""

    def leased(self, frame: Leases) -> None: ...
    def ended(self, frame: Ended) -> None: ...
    def group_news(self, frame: GroupNews) -> None: ...
    def tails(self, frame: Tails) -> None: ...
    def lost(self) -> None:
        """The connection has gone."""


@dataclass(slots=True)
class Call:
    """A publish or a settlement that waits for its answer. `reply` gets what came of it, or an error."""

    frame: Publish | Settle
    reply: Callable[[Any], None]
    until_ms: int
    may_repeat: bool
    size: int = 0
    known_ms: int | None = None
    """For how long after it was sent first a repeat is known for one; None: for ever."""
    is_sent: bool = False
    first_sent_ms: int | None = None
    """When a backend may have begun with it; None while none has."""
    is_repeat: bool = False
    """A backend that was lost may have done it."""
    trace: str | None = None
    """That it belongs to, where spans are wanted."""

    def begins_until_ms(self) -> int:
        """A backend that has not begun with it then must not any more."""
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
        """`whose`: for people, in the place of the shard's number. `cluster`: the further one that it leads to; while
        that is away, nothing waits for it. `addresses`: hears which backends there are; None: nobody wants to know."""
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
        """A count that ends goes before the one that begins."""
        self._quiet: list[Settle] = []
        self._owed: list[Settle] = []
        """What was given back and no backend has heard of: the next one does."""
        self._is_flushing = self._is_leaving = False
        self._is_sent_on = False
        """The backend takes nothing more: what it began it answers, and then it ends the connection."""
        self._onward: tuple[str, int] | None = None
        """Who leads the shard next, by the word of who led it until now."""
        self._problem = "is not connected yet"
        self._strangers = Strangers(self._warn)
        self._met_strangers = 0
        """Visits in a row to backends of another version."""
        self._refused: dict[Address, float] = {}
        """Backends that speak another version, and when they said so."""
        self._patience_s = AWAY_SECONDS if cluster else float("inf")
        self._closed_at = self._loop.time()
        self.connections = 0
        """How often it was connected."""
        self._known = NOTHING_KNOWN
        """What was told of the definitions, and is not told again by a backend that has told it."""
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
        """Of a further cluster: whether it has been closed for so long that nobody waits for it any more."""
        return not self._is_open and self._loop.time() - self._closed_at >= self._patience_s

    def was_refused_at(self, address: Address) -> bool:
        """Whether a backend there spoke another version lately."""
        return self._loop.time() - self._refused.get(address, float("-inf")) < STRANGER_SECONDS

    @property
    def is_waited_for(self) -> bool:
        """Whether calls are without their answer."""
        return bool(self._calls)

    @property
    def waits_with(self) -> int | None:
        """The number of the oldest call without an answer."""
        return next(iter(self._calls), None)

    def hand_back(self) -> None:
        """Answers that nothing was begun, to each call of which that is true: who brought it may send it elsewhere."""
        for number, call in list(self._calls.items()):
            if not call.is_sent and not call.is_repeat:
                del self._calls[number]
                self._tell(call, PushqError(f"{self._whose} is out of reach from here", code=NOT_LEADER))

    async def opened(self, seconds_max: float) -> bool:
        """Whether it is open now, or within that time."""
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
                    self._problem = f"is not there: {error or type(error).__name__}"
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
        self._problem = f"is of another version: {why.detail}"
        self._refused = {at: when for at, when in self._refused.items() if self.was_refused_at(at)}
        self._refused[address] = self._loop.time()
        self._strangers.refuse(OtherVersion(why.detail, who=_shown(address)))

    def _warn(self, why: OtherVersion) -> None:
        self._log.warning("a backend is of another version", shard=self.shard, address=why.who, reason=why.detail)

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
        """Speaks with one backend for as long as it leads. Returns where it sent us, if it does not."""
        async with self._connect(address) as connection:
            assert isinstance(connection, ClientWire), "as the options say"
            held = [*_with_owed(self._owner.held(), self._owed)]
            hears = self._addresses is not None
            greeting = Greeting(STORE_VERSION, self._gateway, self.shard, held, waits_ms, self._known, hears)
            await connection.send(pack(greeting))
            async with asyncio.timeout(LINE_CONNECT_SECONDS_MAX):
                while isinstance(first := self._first(await connection.recv(decode=False), address), Backends):
                    self._hear_of(first)
            if isinstance(first, Turned):
                if first.wrong.code == OTHER_VERSION:
                    raise OtherVersion(first.wrong.detail, who=_shown(address))
                self._problem = first.wrong.detail
                return first.leader
            if not isinstance(first, Greeted):
                raise InvalidRequest(f"{_shown(address)} is no backend")
            self._strangers.let_in(_shown(address))
            self._connection = connection
            self._owner.greeted(first)
            self._log.info("connected to a backend", shard=self.shard, address=_shown(address))
            try:
                await connection.hear(lambda data: self._heard(from_backend(data)))
            finally:
                self._lose()
        return None

    def _first(self, data: bytes, address: Address) -> FromBackend:
        """Raises `OtherVersion`, `InvalidRequest`."""
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
            self._unsent.append(number)  # nothing was done: it goes to the next leader
            self._maybe_leave()
            return
        del self._calls[number]
        if error is not None and call.is_repeat and error.code in _NOT_BEGUN:
            self._tell(call, _open())  # it was not begun this time, and may have been done before
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
        """Whoever failed on an answer did so by its own fault: the others must have theirs."""
        self._log.exception("a listener failed on what it was told", shard=self.shard)

    def _send_on(self, leader: tuple[str, int] | None) -> None:
        """The backend is about to end the connection: what comes from here on waits for the next one."""
        self._is_sent_on, self._onward = True, leader
        self._open.clear()
        self._wants.clear()
        quiet, self._quiet = self._quiet, []
        if any(isinstance(call.frame, Settle) and not call.is_sent for call in self._calls.values()):
            # They wait for the next leader; what is given back comes behind them there.
            for settle in quiet:
                self._owe(settle)
            quiet = [settle for settle in quiet if settle.verb not in _GIVES_BACK]
        if quiet:
            self._post(pack(Settles(quiet)))
        self._post(pack(Wants([])))

    def cut(self) -> None:
        """Ends the connection: the next one begins with what is held here then."""
        if self._connection is not None:
            self._connection.transport.abort()

    def leave_when_quiet(self) -> None:
        """Connects anew where its directory says, once nothing that was asked or sent is without its answer; what comes
        meanwhile waits for that. Where it is not connected it does so anyway."""
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
        """The definitions are here: what waited goes on."""
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
        """Sends a publish or a settlement with what else comes in this turn; `reply` runs later."""
        waiting = len(self._calls)
        if waiting >= LINE_CROWDED_MIN and (why := self._why_full(call.frame, waiting)) is not None:
            self._loop.call_soon(call.reply, Overloaded(why, retry_after_ms=500))
            return
        call.trace = TRACE.get()
        self._calls[call.frame.number] = call
        self._unsent.append(call.frame.number)
        self._flush_soon()

    def _why_full(self, frame: Publish | Settle, waiting: int) -> str | None:
        """Why a call finds no place, where nearly all are taken."""
        if waiting >= LINE_PUBLISHES_MAX and (waiting >= LINE_CALLS_MAX or isinstance(frame, Publish)):
            return f"{waiting} requests wait for {self._whose}, the most that one like this may find; try again later"
        calls = (call.frame for call in self._calls.values())
        if isinstance(frame, Publish) and not self._crowd.admits(frame, waiting, calls):
            held = f"{self._crowd.held(frame.tenant)} requests of tenant {frame.tenant!r} wait for {self._whose}"
            return f"{held}, as many as there is room for beside all others; try again later"
        return None

    def tell(self, settle: Settle) -> None:
        """A settlement that nobody waits for."""
        if self._is_open and not self._is_sent_on:
            self._quiet.append(settle)
            self._flush_soon()
        else:
            self._owe(settle)

    def _owe(self, settle: Settle) -> None:
        """Beyond so many, messages come again when their visibility timeout is over."""
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
        # What is given back as its holder goes comes behind the acks of that holder.
        settles += self._quiet
        self._quiet = []
        if settles:
            self._post(pack(Settles(settles, settled_for or None)))
        if self._wants:
            self._post(pack(Wants(list(self._wants.values()))))
            self._wants.clear()

    def _refuse_if_away(self) -> None:
        """What was never sent; what may have been done waits to be asked again."""
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
                    self._tell(call, OutcomeUnknown("the backend did not answer in time; it may have done this"))
                else:
                    self._tell(call, self._unavailable())
            self._unsent = [number for number in self._unsent if number in self._calls]
            self._maybe_leave()

    # --------------------------------------------------------------------------------------------------- requests

    async def ask(self, operation: Any, *, may_repeat: bool, is_change: bool = False) -> msgspec.Raw:
        """The answer, from whoever leads, while the caller waits for it. `is_change`: of what may be repeated, whether
        the caller must know that it may have been done. Raises `PushqError`."""
        whose = _account_of(operation)
        self._ask_room.take(whose)
        try:
            return await self._answer_to(operation, whose, may_repeat=may_repeat, is_change=is_change)
        finally:
            self._ask_room.give(whose)

    async def _answer_to(self, operation: Any, whose: str | None, *, may_repeat: bool, is_change: bool) -> msgspec.Raw:
        is_change = is_change or not may_repeat
        is_open = False  # a backend that was lost may have done it
        until = min(self._loop.time() + ASK_MS_MAX / 1000, waited_until())
        what = raw(operation)
        while True:
            if self._loop.time() >= until:
                if is_open:
                    raise _lost_with_a_change()
                raise Unavailable(f"{self._whose} was not asked: the time of this request is over", retry_after_ms=500)
            if not await self.opened(self._waits_s(until)):
                raise _lost_with_a_change() if is_open else self._unavailable()
            if not self._is_open or self._is_sent_on:
                continue  # it was lost again before this went on; nothing was sent
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
                raise OutcomeUnknown("the backend did not answer in time; the change may have been made") from None
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
                    waiting.exception()  # looked at, so that nobody reports it as lost

    def _waits_s(self, until: float) -> float:
        now = self._loop.time()
        return max(0.0, until - now if self._is_open else min(until, self._closed_at + self._patience_s) - now)


def _with_owed(held: Iterable[tuple[Place, str, Bits]], owed: Iterable[Settle]) -> Iterator[tuple[Place, str, Bits]]:
    """With what consumers had and gave back, of which the backend hears next: it would take it for what never came, and
    their attempts for none."""
    found = {token: (place, to_bits(bits)) for place, token, bits in held}
    for settle in owed:
        for token, bits in settle.grouped.items() if settle.verb == "return" else ():
            _, others = found.get(token, (settle.place, 0))
            found[token] = settle.place, others | to_bits(bits)
    return ((place, token, of_bits(bits)) for token, (place, bits) in found.items())


def _by_receipts(settle: Settle) -> Settle:
    """For a backend that may not know to whom the lease went: it has written down its receipts at most."""
    return settle._replace(verb="nack", milliseconds=0, tried=settle.verb != "unsent")


def _account_of(operation: Any) -> str | None:
    """The tenant on whose account this is asked; "" where nobody has said who asks, None for the gateway's own."""
    about = operation.whose if isinstance(operation, Asked) else None
    request = ASKED.get()
    if request is None or request.whose is None:
        return about if request is None else None
    return request.whose or about or ""


def _lost_with_a_change() -> OutcomeUnknown:
    return OutcomeUnknown("the backend was lost; the change may have been made")


def _open() -> OutcomeUnknown:
    return OutcomeUnknown("the backend was lost before it answered; it may have stored this")


def _shown(address: Address) -> str:
    return address.name if isinstance(address, Path) else f"{address[0]}:{address[1]}"
