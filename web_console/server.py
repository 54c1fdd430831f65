"""What the console needs from its server. The gateway implements it; pages know nothing else of the gateway."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import msgspec


@dataclass(frozen=True, slots=True)
class Caller:
    """The owner of a credential."""

    id: str
    tenant: str
    name: str
    scopes: tuple[str, ...]


class Reply(NamedTuple):
    """An answer of the HTTP API."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return msgspec.json.decode(self.body) if self.body else None


class QueueRow(msgspec.Struct):
    """A queue in a list. Rates are messages a second; None until two samples lie far enough apart. A queue whose
    cluster `is_away` has no numbers."""

    name: str
    kind: str
    ready: int
    in_flight: int
    delayed: int
    dead: int
    oldest_age_ms: int
    consumers: int
    published_total: int
    acked_total: int
    published_per_s: float | None = None
    acked_per_s: float | None = None
    is_away: bool = False


class Refused(Exception):
    """An invalid credential; the text says why."""


class Server(Protocol):
    async def identify(self, credential: str) -> Caller:
        """The owner of a credential. Raises `Refused`, and `Problem` while the credential cannot be checked."""
        ...

    async def ask(
        self,
        credential: str,
        address: str,
        method: str,
        path: str,
        *,
        query: Sequence[tuple[str, str]] = (),
        body: bytes = b"",
        headers: Sequence[tuple[str, str]] = (),
    ) -> Reply:
        """One request to the HTTP API, on the account of the credential's owner."""
        ...

    async def queues(self, credential: str) -> list[QueueRow]:
        """The queues that the credential may view, by name, as of a moment ago. Raises `Refused` and `Problem`."""
        ...

    async def write_down(self, caller: Caller, act: str, address: str) -> None:
        """Adds a row to the audit: a caller signed in, or out. Raises `Problem`."""
        ...

    def dashboards(self, tenant: str) -> dict[str, tuple[str, ...]]:
        """The saved dashboards of a tenant: name → queues, in the order they are shown."""
        ...

    async def save_dashboard(self, tenant: str, name: str, queues: tuple[str, ...] | None) -> None:
        """Saves a dashboard; None removes it. Returns when it is on the disk. Raises `Problem`."""
        ...

    def settings(self) -> list[tuple[str, str]]:
        """The settings as names and values, secrets left out."""
        ...

    def queue_changes(self) -> dict[str, Any]:
        """The schema of a change to a queue, as the API's document has it: settings that may change, with bounds."""
        ...

    def dev_credential(self) -> str | None:
        """The credential with which `--dev` signs in every caller; None without `--dev`."""
        ...
