"""What the console asks of the server it belongs to. The gateway implements it; pages know nothing else of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import msgspec


@dataclass(frozen=True, slots=True)
class Caller:
    """Who a credential belongs to."""

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
    """A queue in a list. Rates are messages a second; None until two looks lie far enough apart. One whose cluster
    `is_away` has no numbers."""

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
    """A credential that does not let anybody in; the text says why."""


class Server(Protocol):
    async def identify(self, credential: str) -> Caller:
        """Raises `Refused`, and `Problem` while nobody can say."""
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
        """One request to the HTTP API, on the account of whoever the credential belongs to."""
        ...

    async def queues(self, credential: str) -> list[QueueRow]:
        """The queues the credential may view, by name, as of a moment ago. Raises `Refused` and `Problem`."""
        ...

    async def write_down(self, caller: Caller, act: str, address: str) -> None:
        """Puts a row into the audit: somebody signed in, or out. Raises `Problem`."""
        ...

    def dashboards(self, tenant: str) -> dict[str, tuple[str, ...]]:
        """The saved dashboards of a tenant: name → queues, in the order they are shown."""
        ...

    async def save_dashboard(self, tenant: str, name: str, queues: tuple[str, ...] | None) -> None:
        """Returns when it is on the disk; None removes it. Raises `Problem`."""
        ...

    def settings(self) -> list[tuple[str, str]]:
        """The settings as names and values, secrets left out."""
        ...

    def queue_changes(self) -> dict[str, Any]:
        """The schema of a change to a queue, as the API's document has it: settings that may change, with bounds."""
        ...

    def dev_credential(self) -> str | None:
        """What signs in everybody under `--dev`; None without it."""
        ...
