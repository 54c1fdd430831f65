"""The type of one operation of the HTTP API: its handler, and its part of the OpenAPI document."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp

from gateway.api.http import Answer, Call
from gateway.context import Gateway

Handler = Callable[[Gateway, Call], Awaitable[Answer | ASGIApp]]


@dataclass(frozen=True, slots=True)
class Operation:
    method: str
    path: str
    handler: Handler
    summary: str
    scope: str
    """The scope that the caller needs, in words."""
    answers: dict[int, Any]
    """Status → type of the body, or a union of types; None for an answer without a body."""
    request: Any = None
    query: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    """Names in `query` that are required."""
    refusals: tuple[int, ...] = field(default=(400, 401, 403, 404))
    takes_ticket: bool = False
    takes_key: bool = False
    """Whether it may carry an `Idempotency-Key`."""
    has_etag: bool = False
    """Whether its answer has an `ETag`."""
    takes_conditions: bool = False
    """Whether it evaluates `If-Match` and `If-None-Match`, both optional."""
    name: str = field(init=False)
    """Its name in rows of usage and audit: `publish`, `queues.patch`, …"""
    takes_timeout: bool = field(init=False)
    """Whether its caller may set a timeout: all but streams."""
    has_queue: bool = field(init=False)
    """Whether the first variable of its path is a queue's name."""

    def __post_init__(self) -> None:
        module = self.handler.__module__.rpartition(".")[2]
        name = self.handler.__name__
        object.__setattr__(self, "name", name if module in ("messages", name) else f"{module}.{name}")
        object.__setattr__(self, "takes_timeout", self.answers.get(200) != "text/event-stream")
        object.__setattr__(self, "has_queue", self.path.startswith("/v1/queues/{queue}"))
