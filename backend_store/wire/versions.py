"""Versions of the protocols between roles: a peer of another version is refused with a frame that any version can read.

The first frame of a connection is an array of its name, the version and the sender; that never changes, nor do the
names of the WebSocket subprotocols, nor the frames of a refusal. All else may change with the version.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from backend_store.model import Unavailable
from backend_store.wire.limits import STRANGERS_MAX

OTHER_VERSION: Final = "other-version"
"""The code of a refusal: see `OtherVersion`."""


class OtherVersion(Unavailable):
    """The other side speaks another version. It may be upgraded and try again."""

    code = OTHER_VERSION

    def __init__(self, detail: str, *, who: str) -> None:
        super().__init__(detail)
        self.who = who


class _First(msgspec.Struct, frozen=True, array_like=True):
    """The first frame of any version, whatever follows."""

    name: str
    version: int
    who: str


_first = msgspec.msgpack.Decoder(_First).decode


def check_version(data: str | bytes, ours: int, *, me: str, protocol: str, them: str = "") -> None:
    """Checks the version in a first frame; ignores anything that is no first frame. `them`: the peer's name, where the
    caller knows it better. Raises `OtherVersion`."""
    try:
        first = _first(data if isinstance(data, bytes) else data.encode())
    except msgspec.MsgspecError:
        return
    if first.version == ours:
        return
    who = them or first.who
    behind = me if first.version > ours else who
    raise OtherVersion(
        f"{who} speaks version {first.version} of {protocol}, {me} version {ours}: upgrade {behind}", who=who
    )


class Strangers:
    """Peers that were refused for their version. Each is logged once, until it was let in."""

    def __init__(self, warn: Callable[[OtherVersion], None]) -> None:
        self.refused = 0
        """How many connections were refused."""
        self._warn = warn
        self._known: dict[str, str] = {}

    def __contains__(self, who: str) -> bool:
        return who in self._known

    def refuse(self, why: OtherVersion) -> None:
        self.refused += 1
        if self._known.get(why.who) == why.detail:
            return
        self._known[why.who] = why.detail
        while len(self._known) > STRANGERS_MAX:
            del self._known[next(iter(self._known))]
        self._warn(why)

    def let_in(self, who: str) -> None:
        self._known.pop(who, None)
