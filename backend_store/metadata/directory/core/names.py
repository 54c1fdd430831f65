"""The keys of the directory's records at the coordinator, and the arc of the ring that each is on.

`meta/a/ARC/KIND/REST`: a host reads what it keeps by the prefix of an arc, and a list by the prefix of its kind.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final, Literal, NamedTuple

from backend_store.metadata.changes import Change
from backend_store.metadata.directory.limits import ARCS, NAME_CHARS_MAX, NAMES_BYTES_MAX
from backend_store.model import InvalidRequest

Kind = Literal["q", "k", "t", "h", "p"]
"""Queue, key, tenant, how many queues and keys a tenant has (held), placement."""

ROOT: Final = b"meta/"
ARCS_PREFIX: Final = b"meta/a/"
NEXT_UID: Final = b"meta/next-uid"
IDENTITY: Final = b"meta/identity"
RING: Final = b"meta/ring"
HOSTS: Final = b"meta/host/"
_AT_KIND: Final = len(ARCS_PREFIX) + 3
_AT_REST: Final = _AT_KIND + 2


def arc_of(*names: str) -> int:
    """The arc of a name; the same everywhere, for good."""
    point = int.from_bytes(blake2b("\0".join(names).encode(), digest_size=4).digest(), "big")
    return point * ARCS >> 32


def arc_prefix(arc: int) -> bytes:
    return b"%b%02x/" % (ARCS_PREFIX, arc)


def kind_prefix(arc: int, kind: Kind) -> bytes:
    return b"%b%02x/%b/" % (ARCS_PREFIX, arc, kind.encode())


def queue_key(tenant: str, name: str) -> bytes:
    return tenant_queues(arc_of("q", tenant, name), tenant) + name.encode()


def tenant_queues(arc: int, tenant: str) -> bytes:
    """The prefix of a tenant's queues on one arc."""
    return kind_prefix(arc, "q") + tenant.encode() + b"\0"


def api_key_key(key_id: str) -> bytes:
    return kind_prefix(arc_of("k", key_id), "k") + key_id.encode()


def tenant_key(name: str) -> bytes:
    return kind_prefix(arc_of("t", name), "t") + name.encode()


def held_key(tenant: str) -> bytes:
    return kind_prefix(arc_of("t", tenant), "h") + tenant.encode()


def placement_key(uid: int) -> bytes:
    return kind_prefix(arc_of("p", str(uid)), "p") + b"%016x" % uid


def host_key(name: str) -> bytes:
    return HOSTS + name.encode()


class Place(NamedTuple):
    """The parts of a record's key."""

    arc: int
    kind: Kind
    rest: bytes


def place_of(key: bytes) -> Place | None:
    """None for a record that is on no arc."""
    if not key.startswith(ARCS_PREFIX):
        return None
    kind: Kind = key[_AT_KIND : _AT_KIND + 1].decode()  # type: ignore[assignment]
    return Place(int(key[len(ARCS_PREFIX) : _AT_KIND - 1], 16), kind, key[_AT_REST:])


def change_of(place: Place) -> Change | None:
    """The change that watchers get for a record; None for none."""
    match place.kind:
        case "q":
            tenant, _, name = place.rest.decode().partition("\0")
            return Change("queue", name, tenant)
        case "k":
            return Change("key", place.rest.decode())
        case "t":
            return Change("tenant", place.rest.decode())
        case "p":
            return Change("placement", str(int(place.rest, 16)))
        case _:
            return None


def check_name(what: str, name: str) -> None:
    """Raises `InvalidRequest`."""
    if not 1 <= len(name) <= NAME_CHARS_MAX:
        raise InvalidRequest(f"{what} must have 1 to {NAME_CHARS_MAX} characters, not {len(name)}")
    if any(ord(character) < 32 for character in name):
        raise InvalidRequest(f"{what} {name!r} must not contain control characters")
    if len(name.encode()) > NAMES_BYTES_MAX:
        raise InvalidRequest(f"{what} must have at most {NAMES_BYTES_MAX} bytes, not {len(name.encode())}")


def check_queue_name(tenant: str, name: str) -> None:
    """Raises `InvalidRequest`."""
    check_name("tenant", tenant)
    check_name("name", name)
    if (size := len(tenant.encode()) + len(name.encode())) > NAMES_BYTES_MAX:
        raise InvalidRequest(f"tenant and name together must have at most {NAMES_BYTES_MAX} bytes, not {size}")
