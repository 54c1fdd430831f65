"""When to replace a token: early enough that no connection is closed because it expires."""

from __future__ import annotations

import base64
import binascii

import msgspec

from push.client.config import Limits


class _Claims(msgspec.Struct):
    exp: float | None = None


def refresh_in_s(token: str | None, wall_s: float, limits: Limits) -> float | None:
    """For how many seconds to use the token; None if it has no readable expiry, such as an API key.

    Of a short life half is used: `token_refresh_ahead_s` may be all of it.
    """
    parts = token.split(".") if token is not None else []
    if len(parts) != 3:
        return None
    try:
        payload = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        ends_s = msgspec.json.decode(payload, type=_Claims).exp
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        return None
    if ends_s is None:
        return None
    left_s = ends_s - wall_s
    return max(0.0, left_s - min(limits.token_refresh_ahead_s, left_s / 2))
