"""A frame that cannot be read as it is: its request is told why where it can be named; else the socket closes."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from backend_store.model import InvalidRequest, Unauthenticated
from push.encoding.whole_numbers import text_with_whole_numbers
from push.operations.checks import check_id
from push.problems import invalid
from push.protocol import ClientFrame, FrameId, Publish, PublishMessage
from push.session.close_codes import Close
from push.session.greeting import CONNECT_FIRST
from push.session.requests import KINDS

if TYPE_CHECKING:
    from push.session.session import Session

_json_ids = msgspec.json.Decoder(FrameId)
_pack_ids = msgspec.msgpack.Decoder(FrameId)


def undecodable(session: Session, data: bytes, error: Exception, came: float | None) -> None:
    """A frame we can name is answered and the socket stays open; what is no frame of ours at all closes it."""
    codec: Any = msgspec.json if session.encoding == "json" else msgspec.msgpack
    loose: Any = None
    if isinstance(error, msgspec.ValidationError):
        with suppress(msgspec.MsgspecError, RecursionError):
            loose = codec.decode(data)
    if isinstance(loose, list) and any(isinstance(frame, list) for frame in loose):
        session.protocol_error(InvalidRequest("a frame must be an object or a list of objects, not a nested list"))
        return
    if isinstance(loose, list) and len(loose) > 1:
        if not session.may_hold(len(loose)):
            return
        for frame in codec.decode(data, type=list[msgspec.Raw]):
            session.receive(bytes(frame), came)
        return
    if loose is not None and session.encoding == "json" and "got `float`" in str(error):
        written = text_with_whole_numbers(data, ClientFrame | list[ClientFrame])
        if written != data:
            session.receive(written, came)
            return
    if isinstance(loose, list) and loose:
        loose = loose[0]
    name = loose.get("type") if isinstance(loose, dict) else None
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is None or not session.opened:
        session.protocol_error(invalid(error))
        return
    request_id = loose.get("id")
    known = isinstance(request_id, str | int) and not isinstance(request_id, bool)
    fields = dict.fromkeys(PublishMessage.__struct_encode_fields__, "messages") if kind is Publish else {}
    fields |= dict.fromkeys(kind.__struct_encode_fields__, "")
    session.refuse(request_id if known else None, invalid(error, fields))


def uncounted(session: Session, data: bytes, error: InvalidRequest) -> None:
    """A frame with too many messages: of it only the id is read."""
    if not session.opened:
        session.turn_away(None, Unauthenticated(CONNECT_FIRST), Close.UNAUTHENTICATED)
        return
    heads = _json_ids if session.encoding == "json" else _pack_ids
    request_id = None
    with suppress(msgspec.MsgspecError, RecursionError, InvalidRequest):  # a list of frames has none
        head = heads.decode(data)
        check_id(head.id)
        request_id = head.id
    session.error(request_id, error)
