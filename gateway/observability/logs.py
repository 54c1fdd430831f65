"""Configures logging: one event per line on stderr, JSON unless stderr is a terminal. Redacts secrets; bodies are not
logged.

Our code logs no secrets itself. They may occur in text from elsewhere: a library's message, an exception, a name chosen
by a caller. So each finished line is redacted, whatever logged it.
"""

from __future__ import annotations

import faulthandler
import logging
import re
import sys
from typing import Any

import structlog

from backend_store.tracing import TRACE
from gateway.config.settings import Logs

_SECRETS = (
    (re.compile(r"(pushq_[0-9A-Za-z]{1,64}_)[0-9A-Za-z_-]{8,}"), r"\1***"),
    (re.compile(r"eyJ[0-9A-Za-z_-]{4,}\.[0-9A-Za-z_-]+\.?[0-9A-Za-z_-]*"), "***"),
    (re.compile(r"(?i)\b(bearer|basic)(\s+)[^\s\"',}]+"), r"\1\2***"),
    (re.compile(r"(\bticket[\"']?\s*[=:]\s*[\"']?)[^\s&\"',}]+"), r"\1***"),
    (re.compile(r"(://)[^\s/@\"']+@"), r"\1***@"),
)
"""Patterns of API keys, JWTs, credentials in headers, tickets, and passwords in URLs, with their replacements."""

QUIET = ("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi", "sse_starlette", "asyncio")
"""Loggers of libraries, of which only errors are logged: Pushq logs starts and connections itself, where useful."""


def redacted(line: str) -> str:
    """The line with its secrets replaced."""
    for pattern, instead in _SECRETS:
        line = pattern.sub(instead, line)
    return line


def _with_trace(logger: Any, name: str, event: Any) -> Any:
    """Adds the trace id to events logged while a request with a span is processed."""
    if (trace := TRACE.get()) is not None:
        event.setdefault("trace_id", trace[3:35])
    return event


def configure_logs(logs: Logs | None = None) -> None:
    """Sets logging up; call it once at the start of the process."""
    if not faulthandler.is_enabled():
        # A fatal signal, such as from reading past the end of a truncated data file, leaves a traceback.
        faulthandler.enable()
    logs = Logs() if logs is None else logs
    for_people = logs.format == "text" or (logs.format == "auto" and sys.stderr.isatty())
    write: Any = (
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
        if for_people
        else structlog.processors.JSONRenderer(ensure_ascii=False)
    )

    def renderer(logger: Any, name: str, event: Any) -> str:
        return redacted(write(logger, name, event))

    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        _with_trace,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
    ]
    tracebacks = [] if for_people else [structlog.processors.format_exc_info]
    structlog.configure(
        processors=[*shared, *tracebacks, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, logs.level.upper())),
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
