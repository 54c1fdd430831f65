"""What a watch of etcd says: cut into lines, and put together to whole revisions, each once and in order."""

from __future__ import annotations

from backend_store.cluster.core.values import Changes, Event, Revision
from backend_store.cluster.etcd.codec import WatchResult, record_of
from backend_store.cluster.limits import ETCD_ANSWER_BYTES_MAX
from backend_store.model import Unavailable


class Lines:
    """Bytes in, whole lines out."""

    def __init__(self, bytes_max: int = ETCD_ANSWER_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._parts: list[bytes] = []
        self._held = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Raises `Unavailable` for a line that has no end."""
        *whole, rest = data.split(b"\n")
        lines: list[bytes] = []
        for line in whole:
            lines.append(b"".join((*self._parts, line)))
            self._parts.clear()
            self._held = 0
        self._parts.append(rest)
        self._held += len(rest)
        if self._held > self._bytes_max:
            raise Unavailable(f"etcd sent a line of more than {self._bytes_max} bytes")
        return [line for line in lines if line.strip()]


class Assembler:
    """Puts revisions together. `seen` is the last one that was handed out; a new connection goes on from there."""

    def __init__(self, namespace: bytes, after: Revision):
        self.seen = after
        self._namespace = namespace
        self._begun: list[Event] = []
        self._begun_at = after

    def restart(self) -> None:
        """A new connection: what had begun comes again, whole."""
        self._begun = []

    def take(self, result: WatchResult) -> list[Changes]:
        """The revisions that are whole now. A progress notice is one without events."""
        whole: list[Changes] = []
        for event in result.events:
            at = Revision(event.kv.mod_revision)
            if at <= self.seen:
                continue
            if self._begun and at != self._begun_at:
                whole.append(self._finish())
            self._begun_at = at
            record = None if event.type == "DELETE" else record_of(self._namespace, event.kv)
            self._begun.append(Event(event.kv.key.removeprefix(self._namespace), record))
        if self._begun and not result.fragment:
            whole.append(self._finish())
        is_notice = not (result.events or result.created or result.canceled)
        if is_notice and result.header.revision > self.seen:
            self.seen = Revision(result.header.revision)
            whole.append(Changes(self.seen))
        return whole

    def _finish(self) -> Changes:
        changes = Changes(self._begun_at, tuple(self._begun))
        self._begun = []
        self.seen = self._begun_at
        return changes
