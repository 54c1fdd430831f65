"""Seals bodies with the archive's own key: AES-256-GCM, with one nonce per row, bound to the row's position.

Needs the package `cryptography` on the executors.
"""

from __future__ import annotations

import json
import os
from base64 import b64decode, b64encode
from typing import Any, Final

from spark.source.errors import WrongOption

_VERSION: Final = b"\x01"
_NONCE_BYTES: Final = 12


class Sealer:
    """Encrypts and decrypts rows. Raises `WrongOption` without `cryptography`."""

    def __init__(self, key: bytes) -> None:
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError:
            raise WrongOption("sealKey", "needs the package cryptography on the executors: pip install cryptography")
        self._cipher = AESGCM(key)

    def seal(self, secret: dict[str, Any], bound_to: bytes) -> bytes:
        body = secret["body"]
        text = json.dumps({**secret, "body": b64encode(body).decode()}).encode()
        nonce = os.urandom(_NONCE_BYTES)
        return _VERSION + nonce + self._cipher.encrypt(nonce, text, bound_to)

    def open(self, sealed: bytes, bound_to: bytes) -> dict[str, Any]:
        from cryptography.exceptions import InvalidTag

        nonce, rest = sealed[1 : 1 + _NONCE_BYTES], sealed[1 + _NONCE_BYTES :]
        try:
            if sealed[:1] != _VERSION:
                raise InvalidTag
            secret: dict[str, Any] = json.loads(self._cipher.decrypt(nonce, rest, bound_to))
        except InvalidTag:
            raise WrongOption("sealKey", "cannot open a sealed row: it is another key, or the row was changed")
        return {**secret, "body": b64decode(secret["body"])}
