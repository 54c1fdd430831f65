"""Sets up a process's OpenTelemetry spans if its settings ask for them; imports the library only then."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from gateway.config.settings import Settings
from gateway.roles.errors import CannotStart

if TYPE_CHECKING:
    from push.spans import Spans

log = structlog.get_logger("pushq.tracing")


def spans_of(settings: Settings) -> Spans | None:
    """The maker of spans; None if the setting is off. Raises `CannotStart`."""
    if not settings.tracing.spans:
        return None
    try:
        from push.spans import Spans
    except ImportError as error:
        detail = f"tracing.spans requires {error.name}: pip install 'pushq[otel]'"
        raise CannotStart(detail) from None
    spans = Spans()
    if not spans.are_kept:
        log.warning(
            "no span exporter is configured", advice="start with opentelemetry-instrument, or set tracing.spans = false"
        )
    return spans
