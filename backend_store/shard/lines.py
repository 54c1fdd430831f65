"""Connections between backends: one WebSocket for each pair, with mutual TLS, for the replication messages of all
shards.

In a pair, the node whose name sorts first dials. Both sides say who they are, and their certificates must name them.
Messages are the replication core's, which tolerates their loss: what does not fit, or has no connection, is dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import msgspec
import structlog
from websockets.asyncio.client import connect
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.typing import Subprotocol

from backend_store.core.replication.messages import Message
from backend_store.core.replication.record import NodeId
from backend_store.model import InvalidRequest
from backend_store.shard.limits import (
    PEER_FRAME_BYTES_MAX,
    PEER_HELLO_SECONDS_MAX,
    PEER_OUTBOX_BYTES_MAX,
    PEER_RETRY_SECONDS,
    PEER_STRANGER_SECONDS,
)
from backend_store.wire.frames import Hello, from_client, pack
from backend_store.wire.sockets import ClientWire, ServerWire, Wire
from backend_store.wire.tls import BothSides
from backend_store.wire.versions import OtherVersion, Strangers, check_version

log = structlog.get_logger("pushq.lines")

SUBPROTOCOL: Final = Subprotocol("pushq.peer.v1")
"""The same in all versions."""
PEER_VERSION: Final = 1
"""Changes when messages, or the rows of a snapshot, change so that the version before would not understand them: see
`wire.versions`."""
PROTOCOL: Final = "the protocol of backends"
_ROLE: Final = "backend "
_message: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def _warn(why: OtherVersion) -> None:
    log.warning("who speaks another version is refused", reason=why.detail)


class Line:
    """One connection to one other backend."""

    def __init__(self, connection: Wire) -> None:
        self._connection = connection

    def send(self, frame: bytes) -> bool:
        """Whether the frame was taken."""
        waiting = self._connection.waiting_bytes
        if waiting and waiting + len(frame) > PEER_OUTBOX_BYTES_MAX:
            return False
        self._connection.post(frame)
        return True


class Lines:
    """All connections of one backend. Call `listen`, then pass the addresses of other backends to `known`; `close` ends
    all."""

    def __init__(
        self,
        me: NodeId,
        tls: BothSides | None,
        on_message: Callable[[NodeId, Message], None],
        on_open: Callable[[NodeId], None] = lambda node: None,
        admits: Callable[[NodeId], bool] = lambda node: True,
        *,
        version: int = PEER_VERSION,
    ) -> None:
        """`on_message` gets the authenticated sender. `on_open`: there is a new connection; what was on its way by an
        old one is lost. `admits`: whether a node of that name may connect; other nodes have certificates of the same
        authority, too. Without TLS only addresses of this machine make sense: then nothing proves who a peer is."""
        self._me = me
        self._version = version
        self._tls = tls
        self._on_message = on_message
        self._on_open = on_open
        self._admits = admits
        self.strangers = Strangers(_warn)
        """Processes that were refused for their version, gateways among them."""
        self._lines: dict[NodeId, Line] = {}
        self._dialled: dict[NodeId, tuple[str, asyncio.Task[None]]] = {}
        self._server: Server | None = None
        self.dropped = 0
        """Messages that had no connection, or found it full."""

    @property
    def connected(self) -> int:
        return len(self._lines)

    async def listen(self, host: str, port: int) -> int:
        """Returns the port. Raises `OSError`, `ssl.SSLError`."""
        self._server = await serve(
            self._accepted,
            host,
            port,
            ssl=None if self._tls is None else self._tls.server,
            subprotocols=[SUBPROTOCOL],
            compression=None,
            max_size=PEER_FRAME_BYTES_MAX,
            server_header=None,
            create_connection=ServerWire,
        )
        found: int = next(iter(self._server.sockets)).getsockname()[1]
        return found

    def known(self, addresses: Mapping[NodeId, str]) -> None:
        """Sets the addresses of the other backends, `HOST:PORT`; dials those that this node is to dial."""
        for node, address in addresses.items():
            if node <= self._me or self._dialled.get(node, ("", None))[0] == address:
                continue
            self._hang_up(node)
            task = asyncio.get_running_loop().create_task(self._dial(node, address), name=f"line to {node}")
            self._dialled[node] = (address, task)
        for node in [node for node in self._dialled if node not in addresses]:
            self._hang_up(node)

    def _hang_up(self, node: NodeId) -> None:
        known = self._dialled.pop(node, None)
        if known is not None:
            known[1].cancel()

    def send(self, to: NodeId, message: Message) -> None:
        line = self._lines.get(to)
        if line is None or not line.send(pack(message)):
            self.dropped += 1

    async def _dial(self, node: NodeId, address: str) -> None:
        scheme = "ws" if self._tls is None else "wss"
        while True:
            try:
                async with connect(
                    f"{scheme}://{address}",
                    ssl=None if self._tls is None else self._tls.client,
                    subprotocols=[SUBPROTOCOL],
                    compression=None,
                    max_size=PEER_FRAME_BYTES_MAX,
                    proxy=None,
                    open_timeout=PEER_HELLO_SECONDS_MAX,
                    close_timeout=1,
                    create_connection=ClientWire,
                ) as connection:
                    assert isinstance(connection, ClientWire), "as `connect` was told"
                    await self._run(connection, expects=node)
            except (OSError, WebSocketException, TimeoutError) as error:
                log.debug("a line failed", to=node, address=address, error=str(error))
            except Exception:
                # A bug of ours in one message: the connection is needed again for the other messages.
                log.exception("a line failed", to=node, address=address)
            await asyncio.sleep(PEER_STRANGER_SECONDS if _ROLE + node in self.strangers else PEER_RETRY_SECONDS)

    async def _accepted(self, connection: ServerConnection) -> None:
        assert isinstance(connection, ServerWire), "as `serve` was told"
        await self._run(connection, expects=None)

    async def _run(self, connection: Wire, *, expects: NodeId | None) -> None:
        try:
            await connection.send(pack(Hello(self._version, _ROLE + self._me)))
            node = await self._greeted(connection)
            if expects is not None and node != expects:
                raise InvalidRequest(f"at the address of {expects} there is {node}")
            if not self._admits(node):
                raise InvalidRequest(f"{node} is no backend of this cluster")
        except OtherVersion as error:
            self.strangers.refuse(error)
            return
        except (InvalidRequest, TimeoutError, ConnectionClosed) as error:
            log.warning("a line was refused", peer=str(connection.remote_address), error=str(error))
            return
        self.strangers.let_in(_ROLE + node)
        line = self._lines[node] = Line(connection)
        log.info("a line is open", to=node)
        self._on_open(node)
        try:
            await connection.hear(lambda data: self._on_message(node, _message.decode(data)))
            log.info("a backend goes away" if connection.was_left else "a line was closed", to=node)
        except (ConnectionClosed, InvalidRequest, msgspec.MsgspecError) as error:
            log.info("a line broke", to=node, error=str(error))
        finally:
            if self._lines.get(node) is line:
                del self._lines[node]

    async def _greeted(self, connection: Wire) -> NodeId:
        """Returns the peer's name. Raises `OtherVersion`, `InvalidRequest`, `TimeoutError`, `ConnectionClosed`."""
        async with asyncio.timeout(PEER_HELLO_SECONDS_MAX):
            data = await connection.recv()
        check_version(data, self._version, me=_ROLE + self._me, protocol=PROTOCOL)
        hello = from_client(data)
        if not isinstance(hello, Hello) or not hello.role.startswith(_ROLE):
            raise InvalidRequest("this is no backend")
        node = NodeId(hello.role.removeprefix(_ROLE))
        tls = connection.transport.get_extra_info("ssl_object")
        if tls is not None:
            names = [value for kind, value in (tls.getpeercert() or {}).get("subjectAltName", ()) if kind == "DNS"]
            if node not in names:
                raise InvalidRequest(f"the certificate of {node!r} is for {', '.join(names) or 'nobody'}")
        return node

    async def close(self) -> None:
        tasks = [task for _, task in self._dialled.values()]
        for node in list(self._dialled):
            self._hang_up(node)
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
