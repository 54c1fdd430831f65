"""W3C Trace Context: a producer's context is stored with its messages, and handed out as it came."""

from __future__ import annotations

import re

from push.operations.checks import field

TRACESTATE_CHARS_MAX = 512
"""A longer `tracestate` is left out, as the standard allows; the `traceparent` goes on."""

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_TRACESTATE = re.compile(rf"[\x20-\x7e]{{1,{TRACESTATE_CHARS_MAX}}}")


def kept_trace(traceparent: str | None, tracestate: str | None = None) -> str | None:
    """What is stored: the `traceparent`, then the `tracestate` after a space. None if it is not a valid trace
    context."""
    if traceparent is None or _TRACEPARENT.fullmatch(traceparent) is None:
        return None
    state = (tracestate or "").strip()
    return f"{traceparent} {state}" if _TRACESTATE.fullmatch(state) else traceparent


def checked_trace(traceparent: str | None, tracestate: str | None) -> str | None:
    """`kept_trace` for fields of a frame, where an invalid one is a mistake. Raises `InvalidRequest`."""
    if tracestate is not None and traceparent is None:
        raise field("/tracestate", "tracestate requires traceparent; send both")
    if tracestate is not None and _TRACESTATE.fullmatch(tracestate) is None:
        raise field("/tracestate", f"tracestate must have 1 to {TRACESTATE_CHARS_MAX} printable ASCII characters")
    if traceparent is None:
        return None
    kept = kept_trace(traceparent, tracestate)
    if kept is None:
        detail = (
            f"invalid traceparent {traceparent[:80]!r}; use a value such as "
            f"00-{'4bf92f3577b34da6' * 2}-00f067aa0ba902b7-01"
        )
        raise field("/traceparent", detail)
    return kept
