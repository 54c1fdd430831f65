"""Spans of a process, where its settings ask for them. Only who wants them pays for the import."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from gateway.cannot_start import CannotStart
from gateway.settings import Settings

if TYPE_CHECKING:
    from push.spans import Spans

log = structlog.get_logger("pushq.tracing")


def spans_of(settings: Settings) -> Spans | None:
    """What makes spans; None where nobody wants them. Raises `CannotStart`."""
    if not settings.tracing.spans:
        return None
    try:
        from push.spans import Spans
    except ImportError as error:
        detail = f"tracing.spans is true, which needs {error.name}: pip install 'pushq[otel]'"
        raise CannotStart(detail) from None
    spans = Spans()
    if not spans.are_kept:
        log.warning(
            "nobody takes the spans", advice="start with opentelemetry-instrument, or set tracing.spans = false"
        )
    return spans
