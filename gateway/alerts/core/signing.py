"""Signatures of webhooks as Standard Webhooks has them: `id.timestamp.body` with HMAC-SHA256, version 1."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Final

SECRET_PREFIX: Final = "whsec_"
SECRET_BYTES: Final = 32


def secret_text(secret: bytes) -> str:
    """As it is shown to whoever has to verify."""
    return SECRET_PREFIX + base64.b64encode(secret).decode()


def headers(secret: bytes, message_id: str, timestamp_s: int, body: bytes) -> dict[str, str]:
    """The three headers of a webhook."""
    signed = f"{message_id}.{timestamp_s}.".encode() + body
    signature = base64.b64encode(hmac.new(secret, signed, hashlib.sha256).digest()).decode()
    return {"webhook-id": message_id, "webhook-timestamp": str(timestamp_s), "webhook-signature": f"v1,{signature}"}


def retry_after_s(tries: int, *, first_s: float, most_s: float) -> float:
    """The pause after so many tries that failed, before somebody spreads it."""
    return float(min(most_s, first_s * 2 ** (tries - 1)))
