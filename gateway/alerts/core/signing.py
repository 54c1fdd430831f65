"""Signs webhooks as specified by Standard Webhooks: `id.timestamp.body` with HMAC-SHA256, version 1."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Final

SECRET_PREFIX: Final = "whsec_"
SECRET_BYTES: Final = 32


def secret_text(secret: bytes) -> str:
    """The secret in the form that a receiver needs to verify signatures."""
    return SECRET_PREFIX + base64.b64encode(secret).decode()


def headers(secret: bytes, message_id: str, timestamp_s: int, body: bytes) -> dict[str, str]:
    """The three headers of a webhook."""
    signed = f"{message_id}.{timestamp_s}.".encode() + body
    signature = base64.b64encode(hmac.new(secret, signed, hashlib.sha256).digest()).decode()
    return {"webhook-id": message_id, "webhook-timestamp": str(timestamp_s), "webhook-signature": f"v1,{signature}"}


def retry_after_s(tries: int, *, first_s: float, most_s: float) -> float:
    """The pause in seconds after `tries` failed tries, before the caller adds jitter."""
    return float(min(most_s, first_s * 2 ** (tries - 1)))
