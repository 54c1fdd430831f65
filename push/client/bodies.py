"""What a body may be, whatever encoding and transport it goes by: one publish stores the same everywhere.

That is what JSON can hold, or bytes as a whole. What has a usual text is sent as that (times, UUIDs, decimals), what is
a list or an object by another name is sent as one (tuples, sets, dataclasses). NaN, infinities and bytes *inside* a
value have no form that every encoding shares; the client says so before anything is sent.
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
    "number": "NaN and infinities have no JSON form; send null or a string instead",
    "bytes": "bytes inside a value have no JSON form; send them as base64 text, or the whole body as bytes",
}


def fit(body: Any) -> Any:
    """The body as it is to be encoded: itself, as a rule. Of one that was encoded already, so that its size is bounded
    and it does not contain itself. Raises `ApiError` (`invalid-request`) for what cannot be sent.
    """
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
    """What is wrong somewhere inside, a key of `_ADVICE`; or `other`: something there is to be made plain first."""
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
        # Most of what there is needs no look, and its types are told in one go.
        if not _PLAIN.issuperset(map(type, inside)):
            rest += [one for one in inside if type(one) not in _PLAIN]
    return "other" if is_other else "fit"
