"""What a gateway has granted the backend of one queue: how many messages may come, by the visibility time they are for.

Both sides count from the beginning of a connection. Clients choose visibility times, and a connection lives for months:
one that nobody has asked with for a while is forgotten on both sides, and its count begins anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from backend_store.remote.limits import GRANT_IDLE_SECONDS, GRANTS_FORGOTTEN_AT_ONCE_MAX, GRANTS_KEPT


class _Grant:
    __slots__ = ("received", "told", "told_s")

    def __init__(self, now_s: float):
        self.told: int | None = None
        """What the backend knows; None: nothing yet."""
        self.told_s = now_s
        self.received = 0
        """Messages that came on this connection."""


class Grants:
    """See the file's first sentence."""

    def __init__(self) -> None:
        self._grants: dict[int, _Grant] = {}
        """Those that were told last are last."""
        self._open: set[int] = set()
        """Visibility times for which more may come, or has come than was granted."""

    def __len__(self) -> int:
        return len(self._grants)

    def clear(self) -> None:
        """The connection is another one."""
        self._grants.clear()
        self._open.clear()

    def begin_anew(self) -> None:
        """On the same connection: the backend counts from what it was told since it serves the queue."""
        for grant in self._grants.values():
            grant.told, grant.received = None, 0

    def came(self, visibility_ms: int, count: int) -> None:
        grant = self._grants.get(visibility_ms)
        if grant is not None:  # else it was given back, and left long after that
            grant.received += count
            self._open.add(visibility_ms)

    def is_told(self, visibility_ms: int, granted: int) -> bool:
        """Whether that is what the backend was told last."""
        grant = self._grants.get(visibility_ms)
        return grant is not None and grant.told == granted

    def renew(
        self, wanted: Mapping[int, int], waiting_for: Callable[[int], int], now_s: float
    ) -> list[tuple[int, int, int]]:
        """(visibility time, granted in all, of that still to come), of each that the backend is to be told of.

        `wanted`: what consumers would take, of which `waiting_for` has come already.
        """
        found = []
        for visibility_ms in {*wanted, *self._open}:
            messages = max(0, wanted.get(visibility_ms, 0) - waiting_for(visibility_ms))
            grant = self._grants.get(visibility_ms)
            if grant is None:
                grant = self._grants[visibility_ms] = _Grant(now_s)
            granted, told = grant.received + messages, grant.told
            if told is None or (told != granted and not is_enough(told - grant.received, messages)):
                grant.told, grant.told_s = granted, now_s
                self._grants[visibility_ms] = self._grants.pop(visibility_ms)
                found.append((visibility_ms, granted, messages))
            if grant.told == grant.received:
                self._open.discard(visibility_ms)
            else:
                self._open.add(visibility_ms)
        return found

    def forget(self, now_s: float) -> list[int]:
        """Drops visibility times that nobody has asked with for long; the backend is to be told of them."""
        if len(self._grants) <= GRANTS_KEPT:
            return []
        found: list[int] = []
        for visibility_ms, grant in self._grants.items():
            if grant.told_s > now_s - GRANT_IDLE_SECONDS or len(found) == GRANTS_FORGOTTEN_AT_ONCE_MAX:
                break
            if visibility_ms not in self._open:
                found.append(visibility_ms)
        for visibility_ms in found:
            del self._grants[visibility_ms]
        return found


def is_enough(granted: int, wanted: int) -> bool:
    """Whether what may come still is nearly what is wanted: each message that is acked would be granted by a frame of
    its own. Where few are wanted each of them counts."""
    return granted <= wanted < granted + max(1, wanted // 4)
