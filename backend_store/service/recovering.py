"""Requests of an operator, by way of a gateway, about a backend's quarantine: list, read, mark and drop messages."""

from __future__ import annotations

import msgspec

from backend_store.model import InvalidRequest, Unavailable
from backend_store.service.asked import Asked
from backend_store.shard.quarantine import Kept, Place
from backend_store.shard.recovery import Recovery
from backend_store.storage.engine import StorageError
from backend_store.wire.store_frames import raw


class Survey(Asked, frozen=True):
    """Lists the pieces: a list of `Piece`."""


class Some(Asked, frozen=True):
    """Chunks of a piece after a place: a list of (`Place`, `Kept`), empty at the end."""

    shard: int
    epoch: int
    uid: int
    after: Place | None
    bytes_max: int


class Begin(Asked, frozen=True):
    """Records that these chunks are being published again, before the first one is; or that they were not after all."""

    shard: int
    places: list[Place]
    is_begun: bool = True


class Forget(Asked, frozen=True):
    """Drops chunks that were published and confirmed, or that the operator discards."""

    shard: int
    places: list[Place]


_decode = msgspec.msgpack.Decoder(Survey | Some | Begin | Forget).decode


async def operate(recovery: Recovery, what: msgspec.Raw) -> msgspec.Raw:
    """Raises `PushqError`."""
    try:
        asked = _decode(what)
    except msgspec.MsgspecError as error:
        raise InvalidRequest(f"cannot parse the request: {error}") from None
    try:
        match asked:
            case Survey():
                return raw(await recovery.pieces())
            case Some(shard, epoch, uid, after, bytes_max):
                return raw(await recovery.some(shard, epoch, uid, after, bytes_max))
            case Begin(shard, places, is_begun):
                await recovery.begin(shard, places, is_begun=is_begun)
            case Forget(shard, places):
                await recovery.forget(shard, places)
    except (StorageError, OSError) as error:
        raise Unavailable(f"cannot read or write the quarantine: {error}") from error
    return raw(None)


__all__ = ["Begin", "Forget", "Kept", "Place", "Some", "Survey", "operate"]
