"""Checks of arguments other than bodies: refuses here what no frame could carry.

The frames of one turn are encoded together and share a connection: one that cannot be encoded would fail all of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime

import msgspec

from push.client.config import Limits
from push.client.errors import ApiError, FieldError, Problem
from push.client.model import From
from push.client.times import time_text

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


def check_queue(queue: object) -> None:
    """Raises `ApiError` (`invalid-request`) for an invalid queue name: `..` in a URL could address something else."""
    if not isinstance(queue, str):
        raise _refused("queue", f"the queue name must be a string, not {queue!r:.80}")
    if _NAME.fullmatch(queue) is None:
        check_fields(queue=queue)
        rule = "use 1 to 128 characters from A-Z a-z 0-9 _ . -, starting with a letter or digit"
        raise _refused("queue", f"invalid queue name {queue[:200]!r}: {rule}")


def check_part(part: str) -> None:
    """Raises `ApiError` (`invalid-request`) for a name that cannot be one segment of a URL's path."""
    if part in ("", ".", ".."):
        raise _refused("path", f"{part!r} cannot be part of a URL path")


def check_fields(**fields: object) -> None:
    """Raises `ApiError` (`invalid-request`), which names the field, for a value that no frame can carry."""
    for name, value in fields.items():
        try:
            msgspec.msgpack.encode(value)
        except UnicodeEncodeError:
            raise _refused(name, "the string contains an unpaired surrogate") from None
        except OverflowError:
            raise _refused(name, "a number does not fit in 64 bits") from None
        except (TypeError, ValueError, RecursionError) as error:
            raise _refused(name, str(error)) from None


def check_subscribed(credit: object, ack: object, limits: Limits) -> None:
    """Raises `ApiError` (`invalid-request`) as the server does over a WebSocket: over HTTP the server may not see the
    value."""
    most = limits.subscription_credit_max
    if not isinstance(credit, int) or isinstance(credit, bool) or not 1 <= credit <= most:
        raise _refused("credit", f"credit must be a whole number between 1 and {most}, not {credit!r:.80}")
    if ack not in ("manual", "auto"):
        raise _refused("ack", f'ack must be "manual" or "auto", not {ack!r:.80}')


def start_of(given: From | None) -> From | None:
    """The start position as it is sent. Raises `ValueError` for a time without a zone."""
    if not isinstance(given, Mapping):
        return given
    return {name: time_text(value) if isinstance(value, datetime) else value for name, value in given.items()}


def _refused(name: str, detail: str) -> ApiError:
    error = FieldError(pointer=f"/{name}", detail=detail)
    return ApiError(Problem(code="invalid-request", status=400, detail="this cannot be sent", errors=(error,)))
