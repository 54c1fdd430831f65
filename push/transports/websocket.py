"""WebSocket: uvicorn's protocol up to the handshake, then frames go straight from the socket to the session.

ASGI would put a queue, a task and a wake-up between them; with one message a frame those cost more than the message,
and with ten thousand idle sockets most of the memory. So the protocol class below is uvicorn's own with both ends
replaced: incoming data is given to the session in the same call, up to a turn's share of it, and outgoing data is
written to the transport in the same call.
"""

from __future__ import annotations

import asyncio
import fcntl
import sys
import termios
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import structlog
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Close as CloseFrame
from websockets.frames import Frame, Opcode

from backend_store.model import InvalidRequest, MessageTooLarge, PushqError
from push.delivery.hub import binary_frame, text_frame
from push.encoding.deliveries import encode
from push.limits import (
    FRAGMENTS_PER_FRAME_MAX,
    FRAMES_PER_TURN_MAX,
    HANDSHAKE_SECONDS_MAX,
    OUTBOX_BYTES_HARD_MAX,
    OUTBOX_BYTES_SOFT_MAX,
    READ_BYTES_PER_TURN_MAX,
)
from push.ports import Encoding
from push.problems import problem
from push.protocol import FRAME_BYTES_MAX
from push.session.close_codes import Close
from push.session.frame_splitter import FrameSplitter
from push.session.session import Session

log = structlog.get_logger("pushq.websocket")

EXTENSION = "pushq.protocol"
REASON_BYTES_MAX = 123
CLOSE_SECONDS_MAX = 2.0
"""How long a peer may take to answer our close frame before its socket is cut."""
_MESSAGE_TOO_BIG = 1009
_REFUSED_HANDSHAKE = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/problem+json\r\ncontent-length: %d\r\n"
    b"connection: close\r\n\r\n%b"
)


class _NoQueue:
    """Replaces uvicorn's queue of ASGI events: with a session attached, nothing reads them."""

    def put_nowait(self, event: Any) -> None:
        """Drops the event."""


_NO_QUEUE: Any = _NoQueue()


class PushProtocol(WebSocketsSansIOProtocol):
    """A WebSocket connection. Until `attach` it is uvicorn's; from then on it is the session's `Wire`."""

    session: Session | None = None
    splitter: FrameSplitter | None = None
    """None before the handshake, and once incoming data is ignored."""
    is_refused = False
    """The request was not a valid handshake, and has been answered so."""
    via: tuple[str, int] | None = None
    """The client's address, if a trusted proxy has named it."""
    on_lost: Callable[[], None] | None = None
    """Called when the connection is gone."""
    is_writable = True
    _blocked_since: float | None = None
    _paused_by_session = True
    """Until `attach` there is no session to receive frames."""
    _paused_by_outbox = False
    _is_held = True
    """Paused by either of the two: frames that are here wait like those that are not read."""
    _rest: Iterator[tuple[bool, bytes]] | None = None
    """Pieces that were read and wait for another turn."""
    _next_turn: asyncio.Handle | None = None
    _handshake_timer: asyncio.TimerHandle | None = None

    # ---------------------------------------------------------------------------------------------- the handshake

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if self.via is not None:
            self.client = self.via
        self._handshake_timer = self.loop.call_later(HANDSHAKE_SECONDS_MAX, self._handshake_too_late)

    def handle_connect(self, event: Any) -> None:
        super().handle_connect(event)
        if not self.close_sent:
            self.scope["extensions"][EXTENSION] = self  # type: ignore[assignment]

    def attach(self, session: Session) -> None:
        """Makes this the session's wire; frees what only the handshake needed."""
        self.session = session
        self._handshake_ended()
        self.stop_keepalive()
        self.transport.set_write_buffer_limits(high=OUTBOX_BYTES_SOFT_MAX)
        waiting, self.queue = self.queue, _NO_QUEUE
        del self.scope, self.request, self.response
        while not waiting.empty():
            message = waiting.get_nowait()
            if message["type"] == "websocket.disconnect":
                session.gone(clean=True, code=message.get("code", 1005))
        self.unpause()

    async def run_asgi(self) -> None:
        """Runs the application for the handshake. With a session attached, the end of the application is not the end of
        the connection."""
        try:
            await self.app(self.scope, self.receive, self.send)
        except ClientDisconnected:
            pass
        except Exception:
            log.exception("the handshake failed")
            self.send_500_response()
        if self.session is None and self.close_timer is None:
            self.transport.close()

    # ------------------------------------------------------------------------------------------------- frames in

    def data_received(self, data: bytes) -> None:
        splitter = self.splitter
        if splitter is None:
            if not self.handshake_initiated:
                self._greet(data)
            return
        pieces = splitter.feed(data)
        if self._rest is not None:
            self._rest = chain(self._rest, pieces)  # the transport had read it before it was paused
            return
        self._parse(pieces)
        if len(data) > READ_BYTES_PER_TURN_MAX:
            self._end_turn()  # or the loop would read on for as long as the peer fills its buffer

    def _greet(self, data: bytes) -> None:
        """Handles the request's whole head, as the HTTP side has checked it. Frames begin right after it."""
        super().data_received(data)
        if self.handshake_initiated:
            self.splitter = FrameSplitter(FRAME_BYTES_MAX)
        else:
            self._refuse_handshake()

    def _refuse_handshake(self) -> None:
        """Answers a head in which the library found no handshake; the library's own answer is dropped."""
        self.is_refused = True
        self.conn.data_to_send()
        why = self.conn.handshake_exc
        cause = why if why is None or why.__cause__ is None else why.__cause__
        body = encode(problem(InvalidRequest(f"not a WebSocket upgrade: {cause}")), "json")
        self.transport.write(_REFUSED_HANDSHAKE % (len(body), body))
        self.transport.close()

    def _handshake_too_late(self) -> None:
        self._handshake_timer = None
        if not self.handshake_complete:
            self.transport.abort()

    def _handshake_ended(self) -> None:
        if self._handshake_timer is not None:
            self._handshake_timer.cancel()
            self._handshake_timer = None

    def _parse(self, pieces: Iterator[tuple[bool, bytes]]) -> None:
        """Parses a turn's share of what came. The rest waits for another turn, and nothing more is read until then."""
        left = self._parsed(pieces)
        if left is not None:
            self._rest = left
            self._hold()
        self._turn_ended()

    def _turn_ended(self) -> None:
        if self.session is not None:
            self.session.turn_ended()

    def _parsed(self, pieces: Iterator[tuple[bool, bytes]]) -> Iterator[tuple[bool, bytes]] | None:
        """Parses pieces. Returns the rest if this turn's share is used up or reading is paused."""
        if self._is_held and not self.close_sent:
            return pieces
        for number, (is_message, piece) in enumerate(pieces, start=1):
            if is_message:
                self._receive(piece)
            else:
                self._turn_ended()  # messages before a close frame count
                if self._is_held and not self.close_sent:
                    return chain([(is_message, piece)], pieces)
                super().data_received(piece)
                if self.splitter is None:
                    return None  # incoming data is ignored from now on
            if number == FRAMES_PER_TURN_MAX or self._is_held:
                return pieces
        return None

    def _take_turn(self) -> None:
        self._next_turn = None
        rest, self._rest = self._rest, None
        if rest is not None and not self.transport.is_closing():
            self._parse(rest)
        self._hold()

    def send_receive_event_to_app(self) -> None:
        frames, self.frames = self.frames, []
        data = frames[0] if len(frames) == 1 else b"".join(frames)
        self._receive(data if type(data) is bytes else bytes(data))

    def _receive(self, message: bytes) -> None:
        if self.session is not None and not self.close_sent:
            self.session.receive(message)

    def handle_parser_exception(self) -> None:
        """Tells the client which frame broke RFC 6455 or was too large, with our own close codes."""
        self.splitter = None
        sent = self.conn.close_sent
        session = self.session
        if session is None or sent is None:
            super().handle_parser_exception()
            return
        if self.close_sent:
            return
        self.conn.data_to_send()  # the library's own close frame, replaced by ours
        if sent.code == _MESSAGE_TOO_BIG:
            self._refuse(
                session, MessageTooLarge(f"a frame must have at most {FRAME_BYTES_MAX} bytes"), Close.TOO_LARGE
            )
        else:
            error = PushqError(f"not a WebSocket frame: {sent.reason or sent.code}", code="invalid-request")
            self._refuse(session, error, Close.PROTOCOL_ERROR)

    def handle_cont(self, event: Frame) -> None:
        """Bounds the number of fragments: empty ones would add up for ever and never reach the bound of a frame's
        bytes."""
        if len(self.frames) < FRAGMENTS_PER_FRAME_MAX or event.fin:
            super().handle_cont(event)
            return
        self.frames = []
        if self.session is None:
            self.transport.abort()
        elif not self.close_sent:
            error = PushqError(f"a frame must have at most {FRAGMENTS_PER_FRAME_MAX} fragments", code="invalid-request")
            self._refuse(self.session, error, Close.PROTOCOL_ERROR)

    def _refuse(self, session: Session, error: PushqError, code: Close) -> None:
        """Sends the error and a close frame, then reads and drops for a moment what the peer is still sending."""
        self.close_sent = True
        self.splitter = None
        self.send_frame(encode({"type": "error", "problem": problem(error)}, session.encoding), session.encoding)
        self.transport.write(_close_frame(code, error.detail))
        session.gone(clean=True, code=code)
        # To close while the peer still sends would reset the connection, and the reset may overtake our close frame.
        self._paused_by_outbox = False
        self.unpause()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.close_timer = self.loop.call_later(CLOSE_SECONDS_MAX, self.transport.abort)

    def handle_close(self, event: Frame) -> None:
        """Handles the peer's close: final, or with a code of its own (3000–3999), which says that the client means to
        resume."""
        if self.session is not None:
            code = self.conn.close_rcvd.code if self.conn.close_rcvd is not None else 1005
            self.session.gone(clean=not 3000 <= code <= 3999, code=code)
        super().handle_close(event)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.on_lost is not None:
            self.on_lost()
        self._handshake_ended()
        self._rest = None
        session, self.session = self.session, None
        if session is not None:
            session.gone(clean=False, code=1006)

    # ------------------------------------------------------------------------------------------------ frames out

    def send_frame(self, payload: bytes, encoding: Encoding) -> None:
        self.transport.write(text_frame(payload) if encoding == "json" else binary_frame(payload))
        self._hold_when_full()

    def handle_ping(self) -> None:
        if self.session is not None and not self.session.pinged():
            self.conn.data_to_send()  # drops the pong: it is not sent
            return
        super().handle_ping()
        self._hold_when_full()

    def handle_pong(self, event: Frame) -> None:
        """Counts a pong like a ping: it is unsolicited, as our own pings are frames of our protocol."""
        if self.session is not None:
            self.session.pinged()

    def _hold_when_full(self) -> None:
        """Stops reading from a peer that asks without reading the answers. Pongs and answers count alike."""
        if not self.is_writable and self.transport.get_write_buffer_size() > OUTBOX_BYTES_HARD_MAX:
            self._paused_by_outbox = True
            self._hold()

    def write(self, data: bytes) -> None:
        self.transport.write(data)

    def pause_writing(self) -> None:
        if self.session is None:
            super().pause_writing()
            return
        self.is_writable = False
        self._blocked_since = self.loop.time()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.session is not None and not self.is_writable:
            self.is_writable = True
            self._blocked_since = None
            self._paused_by_outbox = False
            self._hold()
            self.session.resumed_writing()

    @property
    def outbox_bytes(self) -> int:
        return self.transport.get_write_buffer_size()

    def waiting_bytes(self) -> int:
        """Bytes that the peer's kernel has not taken yet: those in our kernel, and those in the transport."""
        try:
            unsent = fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
        except (OSError, AttributeError):  # closed just now, or a system that does not tell
            return self.outbox_bytes
        return self.outbox_bytes + int.from_bytes(unsent, sys.byteorder)

    def blocked_seconds(self) -> float:
        return 0.0 if self._blocked_since is None else self.loop.time() - self._blocked_since

    def pause(self) -> None:
        self._paused_by_session = True
        self._hold()

    def unpause(self) -> None:
        self._paused_by_session = False
        self._hold()

    def _hold(self) -> None:
        """Pauses or resumes reading: neither too many requests may wait for the disk, nor too many answers for the
        peer, nor may one client's frames fill a turn of the loop."""
        if self.transport.is_closing():
            return
        self._is_held = (self._paused_by_session or self._paused_by_outbox) and not self.close_sent
        if self._rest is not None and not self._is_held:
            self._end_turn()
        wanted = self._is_held or self._next_turn is not None
        if wanted != self.read_paused:
            self.read_paused = wanted
            if wanted:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()

    def _end_turn(self) -> None:
        """Goes on in the next turn of the loop, after all other work."""
        if self._next_turn is None:
            self._next_turn = self.loop.call_soon(self._take_turn)
            self._hold()

    def close(self, code: int, reason: str) -> None:
        """Sends a close frame, then waits a moment for the peer's own. A peer that does not read is cut."""
        if self.close_sent or self.transport.is_closing():
            return
        self.close_sent = True
        self._paused_by_outbox = False
        self.unpause()
        blocked = not self.is_writable
        self.conn.send_close(code, _short(reason))
        self.transport.write(b"".join(self.conn.data_to_send()))
        cut = self.transport.abort if blocked else self.transport.close
        self.close_timer = self.loop.call_later(CLOSE_SECONDS_MAX, cut)


def _short(reason: str) -> str:
    """Cuts a close reason to the 123 bytes that it may have."""
    return reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore")


def _close_frame(code: int, reason: str) -> bytes:
    return Frame(Opcode.CLOSE, CloseFrame(code, _short(reason)).serialize()).serialize(mask=False)
