"""Logs: one event a line on stderr, JSON unless a person watches. Tokens, tickets and bodies never go through here."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog

QUIET = ("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi", "sse_starlette", "asyncio")
"""Loggers of libraries: their talk about each start and connection is ours to say, or nobody's. Errors pass."""


def configure_logs() -> None:
    """Once, at the start of the process."""
    for_people = sys.stderr.isatty()
    renderer: Any = (
        structlog.dev.ConsoleRenderer(colors=True)
        if for_people
        else structlog.processors.JSONRenderer(ensure_ascii=False)
    )
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
    ]
    tracebacks = [] if for_people else [structlog.processors.format_exc_info]
    structlog.configure(
        processors=[*shared, *tracebacks, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *tracebacks, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    for name in QUIET:
        logger = logging.getLogger(name)
        logger.handlers = []
        logger.propagate = True
        logger.setLevel(logging.ERROR)
