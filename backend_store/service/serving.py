"""The listener of a backend: gateways connect by WebSocket over mutual TLS, one connection for each shard.

A backend serves a shard while it leads it. A gateway that asks for another shard is referred to its leader, if known.
"""

from __future__ import annotations

import asyncio
import http
import os
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec
import structlog
from websockets.asyncio.server import Server, ServerConnection, serve, unix_serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from backend_store.client.embedded import EmbeddedStore
from backend_store.metadata.elsewhere import usual_shards
from backend_store.model import InvalidRequest, PushqError
from backend_store.service.held_leases import return_kept, take_back_unsent
from backend_store.service.limits import (
    FINISH_SECONDS_MAX,
    GREETING_SECONDS_MAX,
    KEY_IDS_PER_VISIT,
    LEAVE_SECONDS_MAX,
    ONWARD_SECONDS_MAX,
    VISITOR_RESUME_SECONDS,
    VISITOR_SILENCE_SECONDS_MAX,
)
from backend_store.service.visitor import Visitor
from backend_store.tracing import Tracer
from backend_store.wire.sockets import ServerWire
from backend_store.wire.store_frames import (
    DOOR,
    NOT_LEADER,
    STORE_FRAME_BYTES_MAX,
    STORE_PROTOCOL,
    STORE_SUBPROTOCOL,
    STORE_VERSION,
    Answered,
    Asks,
    BackendAt,
    Backends,
    Copies,
    Greeted,
    Greeting,
    Operating,
    Publishes,
    Settles,
    Sought,
    Turned,
    Wants,
    from_gateway,
    pack,
    wrong,
)
from backend_store.wire.versions import OtherVersion, Strangers, check_version

log = structlog.get_logger("pushq.backend")

Leader = Callable[[int], str | None]
"""Shard → the address of its leader, as far as it is known here."""
IsComing = Callable[[int], bool]
"""Shard → whether this process is about to lead it."""
There = Callable[[], Sequence[BackendAt]]
"""The live backends of the cluster, as far as they are known here."""
Operate = Callable[[msgspec.Raw], Awaitable[msgspec.Raw]]
"""Answers a request about the backend itself. Raises `PushqError`."""


class Guest(Protocol):
    """The service's side of one connected gateway."""

    def tell_definitions(self) -> None: ...
    def heard(self, frame: Publishes | Settles | Wants | Asks) -> None: ...
    def room(self) -> None: ...


class Served(Protocol):
    """What the listener connects gateways to: a shard's store, or an independent host's own entrance."""

    @property
    def is_leaving(self) -> bool:
        """Whether nothing new is begun."""

    def arrive(self, greeting: Greeting, link: Link) -> tuple[Guest, Greeted]: ...
    def depart(self, name: str, link: Link) -> None: ...


def _unsaid() -> list[Copies]:
    return []


class StoreService:
    """Serves one shard's store to gateways, for as long as the shard is led here."""

    def __init__(
        self,
        store: EmbeddedStore,
        *,
        shards: int = 1,
        lane: int | None = None,
        lanes: int = 0,
        shard: int = 0,
        tracer: Tracer | None = None,
        copies: Callable[[], list[Copies]] = _unsaid,
        mode: str = "sync",
    ):
        """`shards`: how many shards the cluster has, without those that only take queues which ask for their mode; the
        first shard chooses where a new queue is placed. `lane`: with independent hosts, where a queue has a part in all
        `lanes`, this shard's lane. `shard`: this shard's number. `tracer`: None for no spans. `copies`, `mode`: see
        `Greeted`."""
        self.store = store
        self.shard = shard
        self.tracer = tracer
        self.shards = max(shards, lanes)
        self.lanes = lanes
        self._copies = copies
        self._mode = mode
        elsewhere = store.node.metadata.elsewhere
        elsewhere.shards, elsewhere.lanes = shards, lanes
        elsewhere.usual = lambda: usual_shards(copies(), mode)
        store.node.metadata.lane = lane
        self.visitors: dict[str, Visitor] = {}
        self.is_empty = asyncio.Event()
        """Set while no gateway is connected."""
        self.is_empty.set()
        self.is_leaving = False
        """The shard is about to be led elsewhere: nothing new is begun."""
        self._leaving: dict[str, asyncio.TimerHandle] = {}
        self._loop = asyncio.get_running_loop()
        store.node.metadata.on_written = self._written
        store.node.documents.on_written = self._documents_written
        store.node.on_durable = self._go_on
        store.sessions.reach = self._seek
        self._unmet: asyncio.TimerHandle | None = None
        """After a crash: when what the last leader leased returns if its gateways have not come."""
        if store.node.has_crashed and store.node.kept_at:
            self._unmet = self._loop.call_later(VISITOR_RESUME_SECONDS, self._forget_unmet)

    def _written(self) -> None:
        self._loop.call_soon(self._tell)

    def _documents_written(self) -> None:
        self._loop.call_soon(self._tell_documents)

    def _tell(self) -> None:
        for visitor in self.visitors.values():
            visitor.tell_definitions()

    def _tell_documents(self) -> None:
        for visitor in self.visitors.values():
            visitor.tell_documents()

    def _go_on(self) -> None:
        """Acks can be committed again, so messages may be delivered."""
        for visitor in list(self.visitors.values()):
            visitor.room()

    def _seek(self, gateway: str, session: str, principal_id: str) -> bool:
        visitor = self.visitors.get(gateway)
        if visitor is None or visitor.link is None or not visitor.gives_sessions:
            return False
        visitor.link.send(pack(Sought(session, principal_id)))
        return True

    def arrive(self, greeting: Greeting, link: Link) -> tuple[Visitor, Greeted]:
        if (leaving := self._leaving.pop(greeting.gateway, None)) is not None:
            leaving.cancel()
        visitor = self.visitors.get(greeting.gateway)
        if visitor is None:
            visitor = self.visitors[greeting.gateway] = Visitor(self, greeting.gateway)
        elif visitor.link is not None:
            visitor.link.abort()  # the newer connection wins
            visitor.depart()
        visitor.gives_sessions = greeting.gives_sessions
        unknown = visitor.arrive(link, greeting.held, greeting.known)
        self.is_empty.clear()
        ids = self.store.node.metadata.data_keys.reserve(KEY_IDS_PER_VISIT)
        node = self.store.node
        about = STORE_VERSION, node.engine.disk_id, node.steady_ms(), unknown
        has = self.shards, self.lanes, node.metadata.identity
        return visitor, Greeted(
            *about, (ids.start, ids.stop), *has, ends_wants=True, copies=self._copies(), mode=self._mode
        )

    def depart(self, name: str, link: Link) -> None:
        visitor = self.visitors.get(name)
        if visitor is None or visitor.link is not link:
            return  # the gateway has come back on another connection
        visitor.depart()
        if all(one.link is None for one in self.visitors.values()):
            self.is_empty.set()
        wait_s = max(VISITOR_RESUME_SECONDS, visitor.keeps_s)
        self._leaving[visitor.name] = self._loop.call_later(wait_s, self._forget, visitor)

    def _forget(self, visitor: Visitor) -> None:
        self._leaving.pop(visitor.name, None)
        self.visitors.pop(visitor.name, None)
        visitor.forget()
        log.info("a gateway did not come back", gateway=visitor.name)

    def _forget_unmet(self) -> None:
        kept_at = self.store.node.kept_at
        for gateway in list(kept_at):
            return_kept(kept_at.pop(gateway), gateway)
            log.info("a gateway did not come back", gateway=gateway)

    async def finish(self, leader: str) -> None:
        """Begins nothing new, refers all gateways to the next leader, and returns when what was begun is answered, or
        has taken `FINISH_SECONDS_MAX`."""
        self.is_leaving = True
        for visitor in self.visitors.values():
            visitor.send_on(leader)
        try:
            async with asyncio.timeout(FINISH_SECONDS_MAX):
                await asyncio.gather(*(visitor.finish() for visitor in self.visitors.values()))
                await self.store.node.committer.drain()
        except TimeoutError:
            log.info("a shard is handed over with requests under way", queues=len(self.store.queues()))

    def close(self) -> None:
        """The shard is not led here any more, or the process stops: ends all connections."""
        self.store.node.metadata.on_written = lambda: None
        self.store.node.documents.on_written = lambda: None
        self.store.node.on_durable = lambda: None
        for leaving in self._leaving.values():
            leaving.cancel()
        if self._unmet is not None:
            self._unmet.cancel()
        for visitor in self.visitors.values():
            visitor.flush()
            if visitor.link is not None:
                visitor.link.leave()
        # All visitors depart before leases are returned, so that no message is leased again.
        unsent = [visitor.depart() for visitor in self.visitors.values()]
        for leases in unsent:
            take_back_unsent(leases)
        for visitor in self.visitors.values():
            visitor.leases.hand_over()
        self.visitors.clear()
        for queue in self.store.queues():
            queue.redrives.drop()  # their gateways have the next leader go on


class Link:
    """One connection, written to without waiting: its buffer is the outbox, and leases stop while that is full."""

    def __init__(self, connection: ServerWire):
        self._connection = connection
        self.has_left = False

    @property
    def waiting_bytes(self) -> int:
        return self._connection.waiting_bytes

    def when_room(self, on_room: Callable[[], None]) -> None:
        """`on_room` is called when the buffer was full and takes bytes again."""
        self._connection.on_drained = on_room

    def send(self, data: bytes) -> None:
        self._connection.post(data)

    def abort(self) -> None:
        self._connection.transport.abort()

    def leave(self) -> None:
        """Flushes what was sent, as far as the peer reads it within `LEAVE_SECONDS_MAX`, and ignores further input."""
        self.has_left = True
        self._connection.leave()
        asyncio.get_running_loop().call_later(LEAVE_SECONDS_MAX, self._connection.transport.abort)


_OPTIONS: Final[dict[str, Any]] = {
    "subprotocols": [Subprotocol(STORE_SUBPROTOCOL)],
    "compression": None,
    "max_size": STORE_FRAME_BYTES_MAX,
    "ping_interval": VISITOR_SILENCE_SECONDS_MAX,
    "ping_timeout": VISITOR_SILENCE_SECONDS_MAX,
    "close_timeout": 1,
    "server_header": None,
    "create_connection": ServerWire,
}


def _warn(why: OtherVersion) -> None:
    log.warning("who speaks another version is refused", reason=why.detail)


_PEER: Final = struct.Struct("3i")  # pid, uid, gid


def _own_user_only(connection: ServerConnection, request: Request) -> Response | None:
    """Refuses other users: file permissions already do, and peer credentials are checked in case the folder was opened
    up."""
    sock = connection.transport.get_extra_info("socket")
    _, uid, _ = _PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    if uid == os.geteuid():
        return None
    log.warning("connection of another user of this machine refused", uid=uid)
    return connection.respond(http.HTTPStatus.FORBIDDEN, "this socket is its user's own\n")


class StoreServer:
    """The listener. `services` has the shards that are led here now."""

    def __init__(
        self,
        services: Mapping[int, Served],
        leader: Leader = lambda shard: None,
        operate: Operate | None = None,
        *,
        is_coming: IsComing = lambda shard: False,
        door: Served | None = None,
        there: There = tuple,
        copies: Callable[[], list[Copies]] = _unsaid,
        name: str = "this backend",
        strangers: Strangers | None = None,
    ):
        """`operate`: answers requests about the backend itself; None refuses them. `door`: an independent host's
        entrance. `there`, `copies`: see `Backends`; without them gateways are told none. `name`: for messages to
        people. `strangers`: records processes that are refused for their version.
        """
        self._name = name
        self._strangers = strangers or Strangers(_warn)
        self._there = there
        self._copies = copies
        self._told = Backends([])
        self._hearing: set[Link] = set()
        """Gateways that want news of backends."""
        self._is_coming = is_coming
        self._led = asyncio.Event()
        self._operate = operate
        self._services = services
        self._door = door
        self._leader = leader
        self._server: Server | None = None

    def led(self) -> None:
        """Called when a further shard is led here."""
        self._led.set()
        self._led = asyncio.Event()

    def tell_backends(self) -> None:
        """Called when the live backends, or how shards are copied, may have changed."""
        now = self._backends()
        if now == self._told:
            return
        self._told = now
        frame = pack(now)
        for link in self._hearing:
            link.send(frame)

    def _backends(self) -> Backends:
        return Backends(list(self._there()), self._copies())

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None) -> int:
        """Returns the port. Raises `OSError`."""
        self._server = await serve(self._run, host, port, ssl=tls, **_OPTIONS)
        port_found: int = next(iter(self._server.sockets)).getsockname()[1]
        return port_found

    async def listen_local(self, bound: socket.socket) -> None:
        """Listens at a socket of this machine, for processes of the same user only."""
        self._server = await unix_serve(self._run, sock=bound, process_request=_own_user_only, **_OPTIONS)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _run(self, connection: ServerConnection) -> None:
        assert isinstance(connection, ServerWire), "as the options say"
        try:
            await self._visit(connection)
        except (ConnectionClosed, TimeoutError):
            pass  # the gateway reconnects by itself
        except InvalidRequest as error:
            log.warning("a connection speaks another protocol", error=error.detail)

    async def _visit(self, connection: ServerWire) -> None:
        async with asyncio.timeout(GREETING_SECONDS_MAX):
            data = await connection.recv(decode=False)
        try:
            check_version(data, STORE_VERSION, me=self._name, protocol=STORE_PROTOCOL)
        except OtherVersion as why:
            self._strangers.refuse(why)
            await connection.send(pack(Turned(wrong(why))))
            return
        greeting = from_gateway(data)
        if isinstance(greeting, Operating) and self._operate is not None:
            await self._serve_operator(connection, self._operate)
            return
        if not isinstance(greeting, Greeting):
            raise InvalidRequest("the first frame is no greeting")
        self._strangers.let_in(greeting.gateway)
        told = self._backends() if greeting.hears_backends else Backends([])
        if told != Backends([]):
            await connection.send(pack(told))
        service = self._door if greeting.shard == DOOR else await self._served(greeting)
        if service is None or (greeting.shard == DOOR and service.is_leaving):
            error = PushqError(f"shard {greeting.shard} is not led here", code=NOT_LEADER)
            await connection.send(pack(Turned(wrong(error), self._leader(greeting.shard))))
            return
        link = Link(connection)
        visitor, greeted = service.arrive(greeting, link)
        link.when_room(visitor.room)
        link.send(pack(greeted))
        visitor.tell_definitions()
        log.info("a gateway is here", gateway=greeting.gateway, shard=greeting.shard)

        def hear(data: bytes) -> None:
            if link.has_left:
                return
            frame = from_gateway(data)
            if isinstance(frame, Greeting | Operating):
                raise InvalidRequest("a second greeting")
            visitor.heard(frame)

        if greeting.hears_backends:
            self._hearing.add(link)
            if (now := self._backends()) != told:
                link.send(pack(now))
        try:
            await connection.hear(hear)
        finally:
            self._hearing.discard(link)
            service.depart(greeting.gateway, link)

    async def _served(self, greeting: Greeting) -> Served | None:
        """The requested shard, where it is led here; waits a while for a shard that this process is about to lead, or
        that the gateway was referred here for."""
        shard = greeting.shard
        waits_s = min(ONWARD_SECONDS_MAX, greeting.waits_ms / 1000)
        until = asyncio.get_running_loop().time() + (ONWARD_SECONDS_MAX if self._is_coming(shard) else waits_s)
        while (service := self._services.get(shard)) is None:
            try:
                async with asyncio.timeout_at(until):
                    await self._led.wait()
            except TimeoutError:
                return None
        return service

    async def _serve_operator(self, connection: ServerWire, operate: Operate) -> None:
        """Serves one request after the other."""
        async for data in connection:
            ask = from_gateway(data)
            if not isinstance(ask, Asks):
                raise InvalidRequest(f"{type(ask).__name__} where an operator's request was awaited")
            try:
                answer = Answered(ask.number, await operate(ask.what))
            except PushqError as error:
                answer = Answered(ask.number, wrong=wrong(error))
            except Exception:
                log.exception("an operator's request failed")
                answer = Answered(ask.number, wrong=wrong(PushqError("internal error of the backend; see its log")))
            await connection.send(pack(answer))
