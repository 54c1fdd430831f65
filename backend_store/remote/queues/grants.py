"""Credit that a gateway grants a queue's backend: how many messages may come, by visibility timeout.

Both sides count messages from the start of a connection. Clients choose visibility timeouts, and a connection lives for
months: a timeout that has been idle for a while is forgotten on both sides, and its count restarts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from backend_store.remote.limits import GRANT_IDLE_SECONDS, GRANTS_FORGOTTEN_AT_ONCE_MAX, GRANTS_KEPT


class _Grant:
    __slots__ = ("received", "told", "told_s")

    def __init__(self, now_s: float):
        self.told: int | None = None
        """Messages granted in all, as the backend was told last; None: not told yet."""
        self.told_s = now_s
        self.received = 0
        """Messages received on this connection."""


class Grants:
    """See the file's first sentence. A `RemoteQueue` owns it."""

    def __init__(self) -> None:
        self._grants: dict[int, _Grant] = {}
        """By visibility timeout in ms; the most recently told last."""
        self._open: set[int] = set()
        """Visibility timeouts for which more may come, or more has come than was granted."""

    def __len__(self) -> int:
        return len(self._grants)

    def clear(self) -> None:
        """Forgets all grants, for a new connection."""
        self._grants.clear()
        self._open.clear()

    def begin_anew(self) -> None:
        """Restarts the counts on the same connection: the backend counts from when it began to serve the queue."""
        for grant in self._grants.values():
            grant.told, grant.received = None, 0

    def came(self, visibility_ms: int, count: int) -> None:
        grant = self._grants.get(visibility_ms)
        if grant is not None:  # else the backend sent this long after the grant was withdrawn and forgotten
            grant.received += count
            self._open.add(visibility_ms)

    def is_told(self, visibility_ms: int, granted: int) -> bool:
        """Whether the backend was last told `granted`."""
        grant = self._grants.get(visibility_ms)
        return grant is not None and grant.told == granted

    def renew(
        self, wanted: Mapping[int, int], waiting_for: Callable[[int], int], now_s: float
    ) -> list[tuple[int, int, int]]:
        """Returns (visibility timeout, messages granted in all, of these still to come) for each grant to send.

        `wanted`: messages that consumers would take; `waiting_for` returns how many of these have come already.
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
        """Drops and returns visibility timeouts idle for `GRANT_IDLE_SECONDS`; the caller tells the backend."""
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
    """Whether the messages still granted are nearly those wanted, so that no new grant is due: else each ack would send
    a frame of its own. If few are wanted each one counts."""
    return granted <= wanted < granted + max(1, wanted // 4)
