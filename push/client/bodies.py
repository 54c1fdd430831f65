"""Which bodies can be sent: the same in every encoding and over every transport, so that one publish stores the same.

A body is a value that JSON can hold, or bytes as a whole. Values with a usual text form are sent as that text (times,
UUIDs, decimals); tuples, sets and dataclasses are sent as lists and objects. NaN, infinities and bytes *inside* a value
have no form that every encoding shares; the client refuses them before anything is sent.
"""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec

from push.client.errors import ApiError, FieldError, Problem

_WHOLE: Final = (bytes, bytearray, memoryview)
_PLAIN: Final = frozenset({str, int, bool, type(None)})
_TEXT_KEYS: Final = {str}
_ADVICE: Final = {
    "number": "NaN and infinity have no JSON representation; send null or a string instead",
    "bytes": "bytes inside a value have no JSON representation; send them as base64 text, or the whole body as bytes",
}


def fit(body: Any) -> Any:
    """The body to encode: usually the same object. Call it for a body that was encoded once already, so that its size
    is bounded and it does not contain itself. Raises `ApiError` (`invalid-request`) for a body that cannot be sent."""
    kind = type(body)
    if kind in _PLAIN or isinstance(body, _WHOLE):
        return body
    found = _look(body)
    if found == "other":
        body = msgspec.to_builtins(body, builtin_types=_WHOLE, str_keys=True)
        found = _look(body)
    if found in _ADVICE:
        raise refused(_ADVICE[found])
    return body


def refused(detail: str) -> ApiError:
    error = FieldError(pointer="/body", detail=detail)
    return ApiError(
        Problem(code="invalid-request", status=400, detail=f"the body cannot be sent: {detail}", errors=(error,))
    )


def _look(body: Any) -> str:
    """What is wrong somewhere inside, as a key of `_ADVICE`; or `other`: something inside has to be converted first."""
    is_other = False
    rest = [body]
    while rest:
        value = rest.pop()
        kind = type(value)
        if kind is dict:
            is_other = is_other or not _TEXT_KEYS.issuperset(map(type, value))
            inside = value.values()
        elif kind is list or kind is tuple:
            inside = value
        elif kind is float:
            if not math.isfinite(value):
                return "number"
            continue
        elif isinstance(value, _WHOLE):
            return "bytes"
        else:
            is_other = is_other or kind not in _PLAIN
            continue
        # Most values need no look, and one test of their types tells so.
        if not _PLAIN.issuperset(map(type, inside)):
            rest += [one for one in inside if type(one) not in _PLAIN]
    return "other" if is_other else "fit"
